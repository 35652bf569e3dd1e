"""Work lists of attention, in Triton, computed once per step from its positions: the splits of each decode's keys, and
the tiles of each prefill chunk.

They are on the GPU because a replayed graph has a fixed grid: programs divide the list among them, whatever its length.
"""

import triton
import triton.language as tl


@triton.jit
def split_kernel(
    counts, positions, splits, first_splits,
    WIDTH: tl.constexpr, MIN_SPLIT: tl.constexpr, MAX_SPLITS: tl.constexpr, DOUBLINGS: tl.constexpr,
):  # fmt: skip
    """Add the splits of one row: its row, its first key and the key after its last, [3] each.

    A split has MIN_SPLIT keys, doubled until the row has at most MAX_SPLITS, so it depends on the row's position alone.
    A padding row has none.
    """
    row = tl.program_id(0)
    at = tl.arange(0, WIDTH)
    lengths = tl.load(positions + at, mask=at < tl.load(counts), other=-1) + 1
    sizes = tl.full([WIDTH], MIN_SPLIT, tl.int32)
    for _ in tl.static_range(DOUBLINGS):
        sizes = tl.where(sizes * MAX_SPLITS < lengths, sizes * 2, sizes)
    numbers = (lengths + sizes - 1) // sizes
    first = tl.sum(tl.where(at < row, numbers, 0), 0)
    number = tl.sum(tl.where(at == row, numbers, 0), 0)
    size = tl.sum(tl.where(at == row, sizes, 0), 0)
    length = tl.sum(tl.where(at == row, lengths, 0), 0)
    tl.store(first_splits + row, first)
    tl.store(first_splits + row + 1, first + number, mask=row == tl.num_programs(0) - 1)
    split = tl.arange(0, MAX_SPLITS)
    place = splits + (first + split) * 3
    tl.store(place, tl.zeros([MAX_SPLITS], tl.int32) + row, mask=split < number)
    tl.store(place + 1, split * size, mask=split < number)
    tl.store(place + 2, tl.minimum((split + 1) * size, length), mask=split < number)


@triton.jit
def tile_kernel(
    counts, first_rows, tiles, tile_count,
    WIDTH: tl.constexpr, TILE_TOKENS: tl.constexpr, TILES_AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Add the tiles of one chunk: its part and its first row, [2] each."""
    decodes, prefills = tl.load(counts), tl.load(counts + 1)
    chunk = tl.program_id(0)
    at = tl.arange(0, WIDTH)
    starts = tl.load(first_rows + decodes + at, mask=at < prefills, other=0)
    ends = tl.load(first_rows + decodes + at + 1, mask=at < prefills, other=0)
    numbers = (ends - starts + TILE_TOKENS - 1) // TILE_TOKENS
    first = tl.sum(tl.where(at < chunk, numbers, 0), 0)
    number = tl.sum(tl.where(at == chunk, numbers, 0), 0)
    start = tl.sum(tl.where(at == chunk, starts, 0), 0)
    tl.store(tile_count, first + number, mask=chunk == tl.num_programs(0) - 1)
    for begin in range(0, number, TILES_AT_ONCE):
        tile = begin + tl.arange(0, TILES_AT_ONCE)
        place = tiles + (first + tile) * 2
        tl.store(place, tl.zeros([TILES_AT_ONCE], tl.int32) + decodes + chunk, mask=tile < number)
        tl.store(place + 1, start + tile * TILE_TOKENS, mask=tile < number)
