"""Numbers of rows that graphs are captured for. A step is padded to the next one, and pays for the padding."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

_FIRST = (1, 2, 4)
_RANGES = ((8, 128, 8), (128, 512, 16), (512, 1 << 30, 32))  # from, below, step: padding of at most an eighth
_MIXED_STEP = 64
MAX_MIXED_ROWS = 512  # larger steps keep a GPU busy for longer than the launches of their kernels take


def decode_buckets(slots: int) -> list[int]:
    """Return the rows of the graphs of decode steps, ascending; the last is `slots`."""
    return [*_below(slots), slots]


def mixed_buckets(max_rows: int = MAX_MIXED_ROWS) -> list[int]:
    """Return the rows of the graphs of steps with prefills, ascending."""
    return list(range(_MIXED_STEP, max_rows + 1, _MIXED_STEP))


def bucket_for(buckets: Sequence[int], rows: int) -> int | None:
    """Return the least bucket with room for `rows`; None if there is none."""
    place = bisect_left(buckets, rows)
    return buckets[place] if place < len(buckets) else None


def _below(slots: int) -> Iterator[int]:
    yield from (rows for rows in _FIRST if rows < slots)
    for first, end, step in _RANGES:
        yield from range(first, min(end, slots), step)
