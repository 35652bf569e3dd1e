"""A step's plan as tensors: one row per token, first the decodes, then the prefill chunks in order."""

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.worker.engine.batching.sequence import Slice, StepPlan


@dataclass(slots=True)
class Chunk:
    """Rows of one prefill chunk, and the block table of its sequence."""

    rows: slice
    table: Tensor  # [blocks of the sequence so far] int64
    end: int  # positions of the sequence after the chunk
    mask: Tensor | None  # [rows of the chunk, end]; None: the chunk starts at 0, so its mask is plainly causal


@dataclass(slots=True)
class StepInputs:
    """Inputs of a step. Masks are added to scores, in the model's dtype: 0 if visible, minus infinity otherwise."""

    tokens: Tensor  # [rows] int64
    positions: Tensor  # [rows] int64
    slots: Tensor  # [rows] int64: slot of each row's K and V
    decode_tables: Tensor  # [decodes, longest table] int64, padded with block 0
    decode_mask: Tensor  # [decodes, 1, 1, longest table * block_size]
    chunks: list[Chunk]
    sampled_rows: Tensor  # [sampled] int64

    @property
    def decodes(self) -> int:
        return self.decode_tables.shape[0]


def build_inputs(plan: StepPlan, block_size: int, dtype: torch.dtype, device: torch.device) -> StepInputs:
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    sampled_rows = []
    for part in plan.slices:
        tokens += part.sequence.ids[part.start : part.end]
        positions += range(part.start, part.end)
        table = part.sequence.table
        slots += [table[at // block_size] * block_size + at % block_size for at in range(part.start, part.end)]
        if part.is_sampled:
            sampled_rows.append(len(tokens) - 1)
    decode_tables = _padded_tables(plan.decodes, block_size, device)
    lengths = torch.tensor([part.end for part in plan.decodes], device=device)
    positions_read = torch.arange(decode_tables.shape[1] * block_size, device=device)
    return StepInputs(
        torch.tensor(tokens, device=device),
        torch.tensor(positions, device=device),
        torch.tensor(slots, device=device),
        decode_tables,
        _additive(positions_read < lengths[:, None], dtype)[:, None, None],
        _chunks(plan, block_size, dtype, device),
        torch.tensor(sampled_rows, dtype=torch.int64, device=device),
    )


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)


def _padded_tables(decodes: list[Slice], block_size: int, device: torch.device) -> Tensor:
    longest = max((-(-part.end // block_size) for part in decodes), default=0)
    rows = [part.sequence.table[:longest] + [0] * (longest - len(part.sequence.table)) for part in decodes]
    return torch.tensor(rows, dtype=torch.int64, device=device).reshape(len(decodes), longest)


def _chunks(plan: StepPlan, block_size: int, dtype: torch.dtype, device: torch.device) -> list[Chunk]:
    chunks = []
    row = len(plan.decodes)
    for part in plan.prefills:
        table = torch.tensor(part.sequence.table[: -(-part.end // block_size)], device=device)
        mask = _additive(_causal(part, device), dtype) if part.start else None
        chunks.append(Chunk(slice(row, row + part.count), table, part.end, mask))
        row += part.count
    return chunks


def _causal(part: Slice, device: torch.device) -> Tensor:
    """Positions visible to each row of the chunk, [count, end] bool."""
    return torch.ones(part.count, part.end, dtype=torch.bool, device=device).tril(part.start)
