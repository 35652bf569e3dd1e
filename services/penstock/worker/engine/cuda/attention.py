"""Launches of the attention kernels over the paged KV cache.

The sizes were chosen by calculation for a GPU of 132 cores; none has been tuned on one.
"""

import math
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from penstock.worker.engine.cuda.attention_kernels import combine_kernel, decode_kernel, prefill_kernel
from penstock.worker.engine.cuda.step import StepTensors
from penstock.worker.engine.torch.kv_cache import LayerKv

MAX_SPLITS = 64  # splits of a row's keys, which bound the memory of the partial results
MIN_SPLIT_KEYS = 128
MIN_DECODE_PROGRAMS = 512  # of a decode with enough splits: a few programs for each of a GPU's 132 cores
TILE_KEYS = 64
PREFILL_TILE_ROWS = 64  # tokens times the heads that share a KV head
MIN_TILE_ROWS = 16  # rows that a tensor core multiplies at once


def split_length(context_length: int) -> int:
    """Return the keys of a split, equal for all sequences of an engine, so that rows do not depend on batch mates."""
    min_keys = -(-context_length // MAX_SPLITS)
    return max(MIN_SPLIT_KEYS, 1 << (min_keys - 1).bit_length())


def attend_decodes(qkv: Tensor, kv: LayerKv, step: StepTensors, out: Tensor, split: int) -> None:
    """Attention of the leading `step.decodes` rows; 0 where a row's position is -1.

    qkv: [rows, heads + 2 * kv_heads, head_size]; out: [rows, heads, head_size]; split: a multiple of TILE_KEYS.
    """
    rows, heads, kv_heads, head_size = step.decodes, out.shape[1], kv.k.shape[2], out.shape[2]
    partials = torch.empty(rows, heads, MAX_SPLITS, head_size, dtype=torch.float32, device=out.device)
    weights = torch.empty(rows, heads, MAX_SPLITS, dtype=torch.float32, device=out.device)
    programs = min(MAX_SPLITS, triton.cdiv(MIN_DECODE_PROGRAMS, rows * kv_heads))
    decode_kernel[rows, kv_heads, programs](
        *(qkv, kv.k, kv.v, step.positions, step.table_offsets, step.tables, partials, weights),
        **_sizes(heads, kv_heads, head_size, kv.k.shape[1]),
        TILE_ROWS=max(MIN_TILE_ROWS, triton.next_power_of_2(heads // kv_heads)),
        SPLIT=split,
        MAX_SPLITS=MAX_SPLITS,
    )
    combine_kernel[rows, heads](
        *(partials, weights, step.positions, out),
        HEADS=heads,
        HEAD_SIZE=head_size,
        WIDTH=triton.next_power_of_2(head_size),
        SPLIT=split,
        MAX_SPLITS=MAX_SPLITS,
    )


def attend_prefills(qkv: Tensor, kv: LayerKv, step: StepTensors, out: Tensor) -> None:
    """Attention of the rows after the decodes, each over its own sequence up to its own position.

    Shapes as in `attend_decodes`.
    """
    heads, kv_heads, head_size = out.shape[1], kv.k.shape[2], out.shape[2]
    tile_rows = max(PREFILL_TILE_ROWS, triton.next_power_of_2(heads // kv_heads))
    tokens = tile_rows // (heads // kv_heads)
    prefill_kernel[triton.cdiv(step.longest_prefill, tokens), kv_heads, step.prefills](
        *(qkv, kv.k, kv.v, step.positions, step.first_rows, step.table_offsets, step.tables, out, step.decodes),
        **_sizes(heads, kv_heads, head_size, kv.k.shape[1]),
        TILE_ROWS=tile_rows,
        TILE_TOKENS=tokens,
    )


@cache
def _sizes(heads: int, kv_heads: int, head_size: int, block_size: int) -> dict[str, Any]:
    return {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "HEAD_SIZE": head_size,
        "WIDTH": triton.next_power_of_2(head_size),
        "BLOCK_SIZE": block_size,
        "SCALE": math.log2(math.e) / math.sqrt(head_size),
        "TILE_KEYS": TILE_KEYS,
    }
