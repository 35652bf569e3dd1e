"""Attention of a step's rows over the paged KV of their sequences: how its kernels are launched.

Their sizes were chosen on paper for a GPU of 132 cores; none has been tuned on one.
"""

import math
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from penstock.worker.engine.cuda.attention_kernels import combine_kernel, decode_kernel, prefill_kernel
from penstock.worker.engine.cuda.step import StepTensors
from penstock.worker.engine.kv import LayerKv

MOST_SPLITS = 64  # of a row's keys; they bound the memory of the partial results
SHORTEST_SPLIT = 128  # keys
PROGRAMS = 512  # a decode has about so many at least, if there are as many splits: a few for each of a GPU's 132 cores
KEYS = 64  # per tile
LANES = 64  # of a prefill's tile: tokens times the heads that share a KV head
LEAST_LANES = 16  # what a tensor core multiplies at once


def split_length(context_length: int) -> int:
    """Keys of a split: one for all sequences of an engine, or a row's result would depend on its batch mates."""
    least = -(-context_length // MOST_SPLITS)
    return max(SHORTEST_SPLIT, 1 << (least - 1).bit_length())


def attend_decodes(qkv: Tensor, kv: LayerKv, step: StepTensors, out: Tensor, split: int) -> None:
    """Attention of the leading `step.decodes` rows; 0 where a row's position is -1.

    qkv: [rows, heads + 2 * kv_heads, head_size]; out: [rows, heads, head_size]; split: a multiple of KEYS.
    """
    rows, heads, kv_heads, head_size = step.decodes, out.shape[1], kv.k.shape[2], out.shape[2]
    partials = torch.empty(rows, heads, MOST_SPLITS, head_size, dtype=torch.float32, device=out.device)
    weights = torch.empty(rows, heads, MOST_SPLITS, dtype=torch.float32, device=out.device)
    programs = min(MOST_SPLITS, triton.cdiv(PROGRAMS, rows * kv_heads))
    decode_kernel[rows, kv_heads, programs](
        *(qkv, kv.k, kv.v, step.positions, step.table_offsets, step.tables, partials, weights),
        **_sizes(heads, kv_heads, head_size, kv.k.shape[1]),
        LANES=max(LEAST_LANES, triton.next_power_of_2(heads // kv_heads)),
        SPLIT=split,
        MOST_SPLITS=MOST_SPLITS,
    )
    combine_kernel[rows, heads](
        *(partials, weights, step.positions, out),
        HEADS=heads,
        HEAD_SIZE=head_size,
        WIDTH=triton.next_power_of_2(head_size),
        SPLIT=split,
        MOST_SPLITS=MOST_SPLITS,
    )


def attend_prefills(qkv: Tensor, kv: LayerKv, step: StepTensors, out: Tensor) -> None:
    """Attention of the rows after the decodes, each over its own sequence up to its own position.

    Shapes as in `attend_decodes`.
    """
    heads, kv_heads, head_size = out.shape[1], kv.k.shape[2], out.shape[2]
    lanes = max(LANES, triton.next_power_of_2(heads // kv_heads))
    tokens = lanes // (heads // kv_heads)
    prefill_kernel[triton.cdiv(step.longest_prefill, tokens), kv_heads, step.prefills](
        *(qkv, kv.k, kv.v, step.positions, step.first_rows, step.table_offsets, step.tables, out, step.decodes),
        **_sizes(heads, kv_heads, head_size, kv.k.shape[1]),
        LANES=lanes,
        TOKENS=tokens,
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
        "KEYS": KEYS,
    }
