"""Launches of the row-wise kernels of a layer."""

import torch
import triton
from torch import Tensor

from penstock.worker.engine.cuda.kernels.row_kernels import norm_kernel, rotate_kernel, silu_kernel
from penstock.worker.engine.cuda.step import StepTensors
from penstock.worker.engine.torch.kv_cache import LayerKv

_COLUMNS_PER_PROGRAM = 1024


def add_norm(residual: Tensor, update: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Add the update to the residual, in place, and return its RMS norm in `dtype`.

    residual: [rows, dim] float32; update: [rows, dim]; weight: [dim]. Source: Zhang and Sennrich 2019.
    """
    rows, dim = residual.shape
    out = torch.empty(rows, dim, dtype=dtype, device=residual.device)
    norm_kernel[rows,](
        *(residual, residual if update is None else update, weight, out),
        DIM=dim,
        EPS=eps,
        WIDTH=triton.next_power_of_2(dim),
        UPDATES=update is not None,
        num_warps=8 if dim > _COLUMNS_PER_PROGRAM else 4,
    )
    return out


def rotate_and_write(
    qkv: Tensor, rope: tuple[Tensor, Tensor], norms: Tensor | None, kv: LayerKv, step: StepTensors, *, eps: float
) -> None:
    """Apply RoPE on half-split pairs to q, in place, and to k, and write k and v to the cache, except for padding rows.

    qkv: [rows, heads + 2 * kv_heads, head_size]; rope: as `rope_tables`;
    norms: [2, head_size], weights of the RMS norms of each head of q and of k before it is rotated.
    """
    rows, all_heads, head_size = qkv.shape
    kv_heads = kv.k.shape[2]
    rotate_kernel[rows, all_heads - kv_heads](
        *(qkv, *rope, rope[0] if norms is None else norms),
        *(step.positions, step.row_parts, step.table_offsets, step.tables, kv.k, kv.v),
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
    """Return silu(gate) * up, [rows, hidden]. gate_up: [rows, 2 * hidden]"""
    rows, hidden = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, hidden, dtype=gate_up.dtype, device=gate_up.device)
    silu_kernel[rows, triton.cdiv(hidden, _COLUMNS_PER_PROGRAM)](
        gate_up, out, HIDDEN=hidden, COLUMNS=_COLUMNS_PER_PROGRAM
    )
    return out
