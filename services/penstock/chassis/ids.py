"""Random ids, from one buffered source: a call of the kernel for each would cost as much as ten ids."""

import os

_BUFFER_BYTES = 4_096


class RandomSource:
    """Random bytes of the operating system, read in blocks. For one thread."""

    __slots__ = ("_block", "_position")

    def __init__(self) -> None:
        self._block, self._position = b"", 0

    def hex(self, size: int) -> str:
        """Return `size` random bytes as lower-case hexadecimal; at most 64."""
        begin = self._position
        if begin + size > len(self._block):
            self._block, begin = os.urandom(_BUFFER_BYTES), 0
        self._position = begin + size
        return self._block[begin : begin + size].hex()

    def clear(self) -> None:
        """Drop the buffered bytes, as a forked process must."""
        self._block, self._position = b"", 0


_source = RandomSource()
os.register_at_fork(after_in_child=_source.clear)


def new_id() -> str:
    """Return 32 random hexadecimal digits, as many as a UUID has. For the thread of the event loop."""
    return _source.hex(16)


def new_span_id() -> str:
    """Return 16 random hexadecimal digits, never all 0: a parent id of W3C Trace Context."""
    while not (found := _source.hex(8)).strip("0"):
        pass
    return found


def new_trace_id() -> str:
    """Return 32 random hexadecimal digits, never all 0: a trace id of W3C Trace Context."""
    return new_span_id() + _source.hex(8)
