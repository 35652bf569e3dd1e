"""Launches of the attention kernels over the paged KV cache.

The sizes were chosen by calculation for a GPU of 132 cores; none has been tuned on one.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from penstock.worker.engine.cuda.kernels.attention_kernels import combine_kernel, decode_kernel, prefill_kernel
from penstock.worker.engine.cuda.kernels.plan_kernels import split_kernel, tile_kernel
from penstock.worker.engine.cuda.step import StepTensors
from penstock.worker.engine.torch.kv_cache import LayerKv

MAX_SPLITS = 64  # splits of a row's keys, which bound the memory of the partial results
MIN_SPLIT_KEYS = 128
DECODE_PROGRAMS = 1056  # of a decode with enough splits: 8 for each of a GPU's 132 cores
TILE_KEYS = 64
PREFILL_TILE_ROWS = 64  # tokens times the heads that share a KV head
MIN_TILE_ROWS = 16  # rows that a tensor core multiplies at once
_TILES_AT_ONCE = 64


class DecodeSplits(NamedTuple):
    """The splits of the keys of a step's decodes, and their partial results. Every step uses the same memory."""

    splits: Tensor  # [slots * MAX_SPLITS, 3] int32: row, first key, and the key after the last
    first_splits: Tensor  # [slots + 1] int32: first split of each row, then the number of splits
    partials: Tensor  # [slots * MAX_SPLITS, heads, head_size] float32
    weights: Tensor  # [slots * MAX_SPLITS, heads] float32
    doublings: int  # of MIN_SPLIT_KEYS, at most, for the longest context
    min_split_keys: int = MIN_SPLIT_KEYS

    @classmethod
    def allocate(
        cls,
        slots: int,
        heads: int,
        head_size: int,
        *,
        context_length: int,
        device: torch.device,
        min_split_keys: int = MIN_SPLIT_KEYS,
    ) -> "DecodeSplits":
        """min_split_keys: a multiple of TILE_KEYS."""
        shares = -(-context_length // (MAX_SPLITS * min_split_keys))
        capacity = slots * MAX_SPLITS
        return cls(
            torch.zeros(capacity, 3, dtype=torch.int32, device=device),
            torch.zeros(slots + 1, dtype=torch.int32, device=device),
            torch.empty(capacity, heads, head_size, dtype=torch.float32, device=device),
            torch.empty(capacity, heads, dtype=torch.float32, device=device),
            (shares - 1).bit_length(),
            min_split_keys,
        )

    @property
    def slots(self) -> int:
        return len(self.first_splits) - 1


def plan_splits(step: StepTensors, work: DecodeSplits) -> None:
    """Write the splits of the step's decodes. The splits of a row do not depend on its batch mates."""
    split_kernel[step.shape.decodes,](
        *(step.counts, step.positions, work.splits, work.first_splits),
        WIDTH=triton.next_power_of_2(work.slots),
        MIN_SPLIT=work.min_split_keys,
        MAX_SPLITS=MAX_SPLITS,
        DOUBLINGS=work.doublings,
    )


def attend_decodes(qkv: Tensor, kv: LayerKv, step: StepTensors, out: Tensor, work: DecodeSplits) -> None:
    """Attention of the step's decodes, after `plan_splits`. Padding rows are not written.

    qkv: [rows, heads + 2 * kv_heads, head_size]; out: [rows, heads, head_size].

    The programs divide the splits of all rows, so that one long row beside a full batch occupies as many programs as
    its share of the keys.
    """
    rows, heads, kv_heads, head_size = step.shape.decodes, out.shape[1], kv.k.shape[2], out.shape[2]
    programs = min(rows * MAX_SPLITS, triton.cdiv(DECODE_PROGRAMS, kv_heads))
    decode_kernel[programs, kv_heads](
        *(qkv, kv.k, kv.v, step.positions, step.table_offsets, step.tables),
        *(work.splits, work.first_splits, work.partials, work.weights, out, rows),
        **_sizes(heads, kv_heads, head_size, kv.k.shape[1]),
        TILE_ROWS=max(MIN_TILE_ROWS, triton.next_power_of_2(heads // kv_heads)),
    )
    combine_kernel[rows, heads](
        *(work.partials, work.weights, work.first_splits, out),
        HEADS=heads,
        HEAD_SIZE=head_size,
        WIDTH=triton.next_power_of_2(head_size),
        MAX_SPLITS=MAX_SPLITS,
    )


class PrefillTiles(NamedTuple):
    """The tiles of a step's prefill chunks. A tile has `tokens` rows of one chunk."""

    tiles: Tensor  # [at least the number of tiles, 2] int32: part and first row
    total: Tensor  # [1] int32: number of tiles
    tokens: int
    rows: int  # of a tile: tokens times the heads that share a KV head, a power of two or less


def plan_tiles(step: StepTensors, group: int, slots: int) -> PrefillTiles:
    """Return the tiles of the step's chunks. group: query heads that share a KV head."""
    rows = max(PREFILL_TILE_ROWS, triton.next_power_of_2(group))
    tokens = rows // group
    # Every chunk may end in a tile that is not full.
    capacity = step.shape.rows // tokens + step.shape.prefills
    tiles = torch.empty(capacity, 2, dtype=torch.int32, device=step.tokens.device)
    total = torch.empty(1, dtype=torch.int32, device=step.tokens.device)
    tile_kernel[step.shape.prefills,](
        *(step.counts, step.first_rows, tiles, total),
        WIDTH=triton.next_power_of_2(slots),
        TILE_TOKENS=tokens,
        TILES_AT_ONCE=_TILES_AT_ONCE,
    )
    return PrefillTiles(tiles, total, tokens, rows)


def attend_prefills(qkv: Tensor, kv: LayerKv, step: StepTensors, out: Tensor, work: PrefillTiles) -> None:
    """Attention of the rows after the decodes, each over its own sequence up to its own position.

    Shapes as in `attend_decodes`.
    """
    heads, kv_heads, head_size = out.shape[1], kv.k.shape[2], out.shape[2]
    prefill_kernel[len(work.tiles), kv_heads](
        *(qkv, kv.k, kv.v, step.positions, step.first_rows, step.table_offsets, step.tables),
        *(work.tiles, work.total, out),
        **_sizes(heads, kv_heads, head_size, kv.k.shape[1]),
        TILE_ROWS=work.rows,
        TILE_TOKENS=work.tokens,
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
