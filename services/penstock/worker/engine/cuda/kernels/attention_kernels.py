"""Attention over the paged KV cache, in Triton: one row per sequence (decode), or a chunk of each (prefill).

Programs take their work from the lists of `plan_kernels`. Query heads that share a KV head are rows of one tile, so
each K and V is read once for all of them. The keys of a row are summed in an order that depends on its position alone,
so neither batch mates nor the chunks of a prefill change a bit of its result.

Source: Dao 2023 (FlashAttention-2); Dao et al. 2023 (Flash-Decoding) for the splits; Kwon et al. 2023 (PagedAttention).
"""

import triton
import triton.language as tl


@triton.jit
def _attend(
    q, position, kv_head, begin, end, k, v, table,
    KV_HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SCALE: tl.constexpr, TILE_KEYS: tl.constexpr, TILE_ROWS: tl.constexpr,
):  # fmt: skip
    """Attention of each row over the keys in [begin, end) up to its position, of which the first must be one.

    q: [TILE_ROWS, WIDTH]; position: [TILE_ROWS]. Returns the sum of values weighted by 2 ** (score - max_score),
    [TILE_ROWS, WIDTH], then max_score and the sum of the weights, [TILE_ROWS] each.
    """
    d = tl.arange(0, WIDTH)
    total = tl.zeros([TILE_ROWS, WIDTH], tl.float32)
    max_score = tl.full([TILE_ROWS], -float("inf"), tl.float32)
    weight_sum = tl.zeros([TILE_ROWS], tl.float32)
    for first in range(begin, end, TILE_KEYS):
        key_positions = first + tl.arange(0, TILE_KEYS)
        block = tl.load(table + key_positions // BLOCK_SIZE, mask=key_positions < end, other=0).to(tl.int64)
        slot = block * BLOCK_SIZE + key_positions % BLOCK_SIZE
        offsets = (slot * KV_HEADS + kv_head)[:, None] * HEAD_SIZE + d[None, :]
        inside = (key_positions < end)[:, None] & (d < HEAD_SIZE)[None, :]
        keys = tl.load(k + offsets, mask=inside, other=0.0)
        scores = tl.dot(q, tl.trans(keys), input_precision="ieee") * SCALE
        scores = tl.where(key_positions[None, :] <= position[:, None], scores, -float("inf"))
        new_max = tl.maximum(max_score, tl.max(scores, 1))
        weights = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(max_score - new_max)
        values = tl.load(v + offsets, mask=inside, other=0.0)
        total = total * rescale[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        weight_sum = weight_sum * rescale + tl.sum(weights, 1)
        max_score = new_max
    return total, max_score, weight_sum


@triton.jit(do_not_specialize=["rows"])
def decode_kernel(
    qkv, k, v, positions, table_offsets, tables, splits, first_splits, partials, weights, out, rows,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, SCALE: tl.constexpr, TILE_KEYS: tl.constexpr, TILE_ROWS: tl.constexpr,
):  # fmt: skip
    """Every `num_programs(0)`-th split, for one KV head. The result of a row with one split is final."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    kv_head = tl.program_id(1)
    tile_row, d = tl.arange(0, TILE_ROWS), tl.arange(0, WIDTH)
    head = kv_head * GROUP + tile_row
    inside = (tile_row < GROUP)[:, None] & (d < HEAD_SIZE)[None, :]
    for split in range(tl.program_id(0), tl.load(first_splits + rows), tl.num_programs(0)):
        row = tl.load(splits + split * 3).to(tl.int64)
        begin, end = tl.load(splits + split * 3 + 1), tl.load(splits + split * 3 + 2)
        position = tl.load(positions + row)
        start = row * ((HEADS + 2 * KV_HEADS) * HEAD_SIZE)
        q = tl.load(qkv + start + head[:, None] * HEAD_SIZE + d[None, :], mask=inside, other=0.0)
        total, max_score, weight_sum = _attend(
            q, tl.full([TILE_ROWS], 0, tl.int32) + position, kv_head, begin, end,
            k, v, tables + tl.load(table_offsets + row),
            KV_HEADS, HEAD_SIZE, WIDTH, BLOCK_SIZE, SCALE, TILE_KEYS, TILE_ROWS,
        )  # fmt: skip
        mean = total / weight_sum[:, None]
        if end - begin == position + 1:
            place = out + (row * HEADS + head)[:, None] * HEAD_SIZE + d[None, :]
            tl.store(place, mean.to(out.dtype.element_ty), mask=inside)
        else:
            offset = (split * HEADS + head).to(tl.int64)
            tl.store(partials + offset[:, None] * HEAD_SIZE + d[None, :], mean, mask=inside)
            tl.store(weights + offset, max_score + tl.log2(weight_sum), mask=tile_row < GROUP)


@triton.jit
def combine_kernel(
    partials, weights, first_splits, out,
    HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, WIDTH: tl.constexpr, MAX_SPLITS: tl.constexpr,
):  # fmt: skip
    """One row and head: the mean of its splits' results, weighted by 2 ** weight."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first = tl.load(first_splits + row)
    splits = tl.load(first_splits + row + 1) - first
    # A row with one split is complete; a padding row and a row of a prefill chunk have none.
    if splits <= 1:
        return
    split, d = tl.arange(0, MAX_SPLITS), tl.arange(0, WIDTH)
    offset = (first + split).to(tl.int64) * HEADS + head
    weight = tl.load(weights + offset, mask=split < splits, other=-float("inf"))
    weight = tl.exp2(weight - tl.max(weight, 0))
    inside = (split < splits)[:, None] & (d < HEAD_SIZE)[None, :]
    values = tl.load(partials + offset[:, None] * HEAD_SIZE + d[None, :], mask=inside, other=0.0)
    mean = tl.sum(values * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(out + (row * HEADS + head) * HEAD_SIZE + d, mean.to(out.dtype.element_ty), mask=d < HEAD_SIZE)


@triton.jit
def prefill_kernel(
    qkv, k, v, positions, first_rows, table_offsets, tables, tiles, tile_count, out,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, SCALE: tl.constexpr, TILE_KEYS: tl.constexpr, TILE_ROWS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
):  # fmt: skip
    """One tile, for one KV head."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    if tile >= tl.load(tile_count):
        return
    part, first = tl.load(tiles + tile * 2), tl.load(tiles + tile * 2 + 1)
    end = tl.load(first_rows + part + 1)
    tile_row, d = tl.arange(0, TILE_ROWS), tl.arange(0, WIDTH)
    row = first + tile_row // GROUP
    is_query = (tile_row < TILE_TOKENS * GROUP) & (row < end)
    position = tl.load(positions + row, mask=is_query, other=0)
    head = kv_head * GROUP + tile_row % GROUP
    inside = is_query[:, None] & (d < HEAD_SIZE)[None, :]
    start = row.to(tl.int64) * (HEADS + 2 * KV_HEADS) + head
    q = tl.load(qkv + start[:, None] * HEAD_SIZE + d[None, :], mask=inside, other=0.0)
    total, _, weight_sum = _attend(
        q, position, kv_head, 0, tl.max(position, 0) + 1, k, v, tables + tl.load(table_offsets + part),
        KV_HEADS, HEAD_SIZE, WIDTH, BLOCK_SIZE, SCALE, TILE_KEYS, TILE_ROWS,
    )  # fmt: skip
    offset = row.to(tl.int64) * HEADS + head
    result = (total / weight_sum[:, None]).to(out.dtype.element_ty)
    tl.store(out + offset[:, None] * HEAD_SIZE + d[None, :], result, mask=inside)
