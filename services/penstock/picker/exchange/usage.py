"""The usage of a response, read from the end of its body."""

import re

from penstock.picker.picking.pick import Usage

MAX_TAIL_BYTES = 2_048  # of a body that are kept; usage is in the last event of a stream, and at the end of a document
MAX_TOKENS_DIGITS = 8
_TOKENS = re.compile(rb'"(prompt|completion|cached)_tokens"\s*:\s*(\d{1,%d})\b' % MAX_TOKENS_DIGITS)


class UsageReader:
    """Keeps the tail of a body in pieces."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, piece: bytes) -> None:
        self._tail = (self._tail + piece)[-MAX_TAIL_BYTES:] if len(piece) < MAX_TAIL_BYTES else piece[-MAX_TAIL_BYTES:]

    def read(self) -> Usage | None:
        """Return the usage; None if the body has none, for example because its client did not ask for it."""
        found = {name: int(digits) for name, digits in _TOKENS.findall(self._tail)}
        if b"prompt" not in found or b"completion" not in found:
            return None
        return Usage(found[b"prompt"], found[b"completion"], min(found[b"prompt"], found.get(b"cached", 0)))
