"""What a layer does to each row by itself, as Triton kernels: read once, computed in float32, written once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.worker.engine.cuda.step import StepTensors
from penstock.worker.engine.kv import LayerKv

_COLUMNS = 1024  # per program


def add_norm(residual: Tensor, update: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Add the update to the residual, in place, and return its RMS norm in `dtype`.

    residual: [rows, dim] float32; update: [rows, dim]; weight: [dim]. Source: Zhang and Sennrich 2019.
    """
    rows, dim = residual.shape
    out = torch.empty(rows, dim, dtype=dtype, device=residual.device)
    _norm_kernel[rows,](
        *(residual, residual if update is None else update, weight, out),
        DIM=dim,
        EPS=eps,
        WIDTH=triton.next_power_of_2(dim),
        UPDATES=update is not None,
        num_warps=8 if dim > _COLUMNS else 4,
    )
    return out


def rotate_and_write(
    qkv: Tensor, cos: Tensor, sin: Tensor, norms: Tensor | None, eps: float, kv: LayerKv, step: StepTensors
) -> None:
    """RoPE on half-split pairs of q, in place, and of k, into the cache with v. Rows without a position write nothing.

    qkv: [rows, heads + 2 * kv_heads, head_size]; cos, sin: [context_length, head_size / 2];
    norms: [2, head_size], weights of the RMS norms of each head of q and of k before it is rotated.
    """
    rows, all_heads, head_size = qkv.shape
    kv_heads = kv.k.shape[2]
    _rotate_kernel[rows, all_heads - kv_heads](
        *(qkv, cos, sin, cos if norms is None else norms),
        *(step.positions, step.owners, step.table_offsets, step.tables, kv.k, kv.v),
        HEADS=all_heads - 2 * kv_heads,
        KV_HEADS=kv_heads,
        HALF=head_size // 2,
        WIDTH=triton.next_power_of_2(head_size // 2),
        BLOCK_SIZE=kv.k.shape[1],
        EPS=eps,
        NORMS=norms is not None,
        num_warps=1,
    )


def silu_multiply(gate_up: Tensor) -> Tensor:
    """silu(gate) * up: [rows, hidden]. gate_up: [rows, 2 * hidden]"""
    rows, hidden = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, hidden, dtype=gate_up.dtype, device=gate_up.device)
    _silu_kernel[rows, triton.cdiv(hidden, _COLUMNS)](gate_up, out, HIDDEN=hidden, COLUMNS=_COLUMNS)
    return out


@triton.jit
def _norm_kernel(
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
def _rotate_kernel(
    qkv, cos, sin, norms, positions, owners, table_offsets, tables, k, v,
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
        table = tables + tl.load(table_offsets + tl.load(owners + row))
        slot = tl.load(table + position // BLOCK_SIZE).to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
        place = (slot * KV_HEADS + head - HEADS) * (2 * HALF) + at
        tl.store(k + place, turned, mask=inside)
        tl.store(k + place + HALF, turned_second, mask=inside)
        value = source + KV_HEADS * (2 * HALF)
        tl.store(v + place, tl.load(value, mask=inside), mask=inside)
        tl.store(v + place + HALF, tl.load(value + HALF, mask=inside), mask=inside)


@triton.jit
def _silu_kernel(gate_up, out, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    gate = tl.load(gate_up + row * (2 * HIDDEN) + at, mask=at < HIDDEN, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * (2 * HIDDEN) + HIDDEN + at, mask=at < HIDDEN, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * HIDDEN + at, value.to(out.dtype.element_ty), mask=at < HIDDEN)
