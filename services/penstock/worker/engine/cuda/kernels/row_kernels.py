"""Row-wise kernels of a layer, in Triton: each row is read once, computed in float32 and written once."""

import triton
import triton.language as tl


@triton.jit
def norm_kernel(
    residual, update, weight, out,
    DIM: tl.constexpr, EPS: tl.constexpr, WIDTH: tl.constexpr, UPDATES: tl.constexpr,
):  # fmt: skip
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    places = row * DIM + at
    x = tl.load(residual + places, mask=at < DIM, other=0.0)
    if UPDATES:
        x += tl.load(update + places, mask=at < DIM, other=0.0).to(tl.float32)
        tl.store(residual + places, x, mask=at < DIM)
    x *= tl.rsqrt(tl.sum(x * x, 0) / DIM + EPS)
    x *= tl.load(weight + at, mask=at < DIM, other=0.0)
    tl.store(out + places, x.to(out.dtype.element_ty), mask=at < DIM)


@triton.jit
def rotate_kernel(
    qkv, cos, sin, norms, positions, row_parts, table_offsets, tables, k, v,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, EPS: tl.constexpr, NORMS: tl.constexpr,
):  # fmt: skip
    """One row and one head of q, or of k with its v."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions + row)
    if position < 0:
        return
    at = tl.arange(0, WIDTH)
    inside = at < HALF
    source = qkv + (row * (HEADS + 2 * KV_HEADS) + head) * (2 * HALF) + at
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    if NORMS:
        scale = tl.rsqrt((tl.sum(first * first, 0) + tl.sum(second * second, 0)) / (2 * HALF) + EPS)
        weight = norms + (head >= HEADS).to(tl.int32) * (2 * HALF) + at
        first *= scale * tl.load(weight, mask=inside, other=0.0)
        second *= scale * tl.load(weight + HALF, mask=inside, other=0.0)
    angle = position.to(tl.int64) * HALF + at
    c = tl.load(cos + angle, mask=inside, other=0.0)
    s = tl.load(sin + angle, mask=inside, other=0.0)
    turned = (first * c - second * s).to(k.dtype.element_ty)
    turned_second = (second * c + first * s).to(k.dtype.element_ty)
    if head < HEADS:
        tl.store(source, turned, mask=inside)
        tl.store(source + HALF, turned_second, mask=inside)
    else:
        table = tables + tl.load(table_offsets + tl.load(row_parts + row))
        slot = tl.load(table + position // BLOCK_SIZE).to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
        place = (slot * KV_HEADS + head - HEADS) * (2 * HALF) + at
        tl.store(k + place, turned, mask=inside)
        tl.store(k + place + HALF, turned_second, mask=inside)
        value = source + KV_HEADS * (2 * HALF)
        tl.store(v + place, tl.load(value, mask=inside), mask=inside)
        tl.store(v + place + HALF, tl.load(value + HALF, mask=inside), mask=inside)


@triton.jit
def silu_kernel(gate_up, out, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    gate = tl.load(gate_up + row * (2 * HIDDEN) + at, mask=at < HIDDEN, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * (2 * HIDDEN) + HIDDEN + at, mask=at < HIDDEN, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * HIDDEN + at, value.to(out.dtype.element_ty), mask=at < HIDDEN)
