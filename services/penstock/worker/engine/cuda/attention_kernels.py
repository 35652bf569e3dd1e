"""Attention over the paged KV cache, in Triton: one row per sequence (decode), or a chunk of each (prefill).

Query heads that share a KV head lie side by side in one tile, so each K and V is read once for all of them. The keys
of a row are added up in an order that follows from its position alone: neither batch mates nor the chunks of a
prefill change a bit of its result.

Source: Dao 2023 (FlashAttention-2); Dao et al. 2023 (Flash-Decoding) for the splits; Kwon et al. 2023 (PagedAttention).
"""

import triton
import triton.language as tl


@triton.jit
def _attend(
    q, position, kv_head, begin, end, k, v, table,
    KV_HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SCALE: tl.constexpr, KEYS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Each lane over the keys from `begin` to before `end` that are not after its position; it must see the first.

    q: [LANES, WIDTH]; position: [LANES]. Returns the sum of values weighted by 2 ** (score - highest), [LANES, WIDTH],
    the highest score and the sum of those weights, [LANES] each.
    """
    d = tl.arange(0, WIDTH)
    total = tl.zeros([LANES, WIDTH], tl.float32)
    highest = tl.full([LANES], -float("inf"), tl.float32)
    mass = tl.zeros([LANES], tl.float32)
    for first in range(begin, end, KEYS):
        at = first + tl.arange(0, KEYS)
        block = tl.load(table + at // BLOCK_SIZE, mask=at < end, other=0).to(tl.int64)
        slot = block * BLOCK_SIZE + at % BLOCK_SIZE
        places = (slot * KV_HEADS + kv_head)[:, None] * HEAD_SIZE + d[None, :]
        inside = (at < end)[:, None] & (d < HEAD_SIZE)[None, :]
        keys = tl.load(k + places, mask=inside, other=0.0)
        scores = tl.dot(q, tl.trans(keys), input_precision="ieee") * SCALE
        scores = tl.where(at[None, :] <= position[:, None], scores, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrunk = tl.exp2(highest - higher)
        values = tl.load(v + places, mask=inside, other=0.0)
        total = total * shrunk[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        mass = mass * shrunk + tl.sum(weights, 1)
        highest = higher
    return total, highest, mass


@triton.jit
def decode_kernel(
    qkv, k, v, positions, table_offsets, tables, partials, weights,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, SCALE: tl.constexpr, KEYS: tl.constexpr, LANES: tl.constexpr,
    SPLIT: tl.constexpr, MOST_SPLITS: tl.constexpr,
):  # fmt: skip
    """One row and KV head; of its splits every `num_programs(2)`-th."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions + row)
    table = tables + tl.load(table_offsets + row)
    lane, d = tl.arange(0, LANES), tl.arange(0, WIDTH)
    head = kv_head * GROUP + lane
    inside = (lane < GROUP)[:, None] & (d < HEAD_SIZE)[None, :]
    start = row * ((HEADS + 2 * KV_HEADS) * HEAD_SIZE)
    q = tl.load(qkv + start + head[:, None] * HEAD_SIZE + d[None, :], mask=inside, other=0.0)
    for split in range(tl.program_id(2), tl.cdiv(position + 1, SPLIT), tl.num_programs(2)):
        total, highest, mass = _attend(
            q, tl.full([LANES], 0, tl.int32) + position, kv_head, split * SPLIT,
            tl.minimum((split + 1) * SPLIT, position + 1), k, v, table,
            KV_HEADS, HEAD_SIZE, WIDTH, BLOCK_SIZE, SCALE, KEYS, LANES,
        )  # fmt: skip
        place = (row * HEADS + head) * MOST_SPLITS + split
        tl.store(partials + place[:, None] * HEAD_SIZE + d[None, :], total / mass[:, None], mask=inside)
        tl.store(weights + place, highest + tl.log2(mass), mask=lane < GROUP)


@triton.jit
def combine_kernel(
    partials, weights, positions, out,
    HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, WIDTH: tl.constexpr, SPLIT: tl.constexpr, MOST_SPLITS: tl.constexpr,
):  # fmt: skip
    """One row and head: the mean of its splits' results, weighted by 2 ** weight."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    splits = tl.cdiv(tl.load(positions + row) + 1, SPLIT)
    split, d = tl.arange(0, MOST_SPLITS), tl.arange(0, WIDTH)
    place = (row * HEADS + head) * MOST_SPLITS + split
    weight = tl.load(weights + place, mask=split < splits, other=-float("inf"))
    # A row without a position has no split: then the least weight there is keeps infinities from their difference.
    weight = tl.exp2(weight - tl.maximum(tl.max(weight, 0), -3.0e38))
    inside = (split < splits)[:, None] & (d < HEAD_SIZE)[None, :]
    values = tl.load(partials + place[:, None] * HEAD_SIZE + d[None, :], mask=inside, other=0.0)
    mean = tl.sum(values * weight[:, None], 0) / tl.maximum(tl.sum(weight, 0), 1.0e-30)
    tl.store(out + (row * HEADS + head) * HEAD_SIZE + d, mean.to(out.dtype.element_ty), mask=d < HEAD_SIZE)


@triton.jit(do_not_specialize=["decodes"])
def prefill_kernel(
    qkv, k, v, positions, first_rows, table_offsets, tables, out, decodes,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, SCALE: tl.constexpr, KEYS: tl.constexpr, LANES: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """A tile of TOKENS rows of one chunk, for one KV head."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    kv_head, part = tl.program_id(1), decodes + tl.program_id(2)
    first = tl.load(first_rows + part) + tl.program_id(0) * TOKENS
    end = tl.load(first_rows + part + 1)
    if first >= end:
        return
    lane, d = tl.arange(0, LANES), tl.arange(0, WIDTH)
    row = first + lane // GROUP
    is_query = (lane < TOKENS * GROUP) & (row < end)
    position = tl.load(positions + row, mask=is_query, other=0)
    head = kv_head * GROUP + lane % GROUP
    inside = is_query[:, None] & (d < HEAD_SIZE)[None, :]
    start = row.to(tl.int64) * (HEADS + 2 * KV_HEADS) + head
    q = tl.load(qkv + start[:, None] * HEAD_SIZE + d[None, :], mask=inside, other=0.0)
    total, _, mass = _attend(
        q, position, kv_head, 0, tl.max(position, 0) + 1, k, v, tables + tl.load(table_offsets + part),
        KV_HEADS, HEAD_SIZE, WIDTH, BLOCK_SIZE, SCALE, KEYS, LANES,
    )  # fmt: skip
    place = row.to(tl.int64) * HEADS + head
    result = (total / mass[:, None]).to(out.dtype.element_ty)
    tl.store(out + place[:, None] * HEAD_SIZE + d[None, :], result, mask=inside)
