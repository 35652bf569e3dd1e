"""A step's plan as tensors: one row per token, decodes first, then the prefill chunks one after another."""

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.worker.batch import Slice, StepPlan


@dataclass(slots=True)
class Chunk:
    """Rows of one prefill chunk, and where its sequence's KV lies."""

    rows: slice
    table: Tensor  # [blocks of the sequence so far] int64
    end: int  # positions of the sequence once the chunk is written


@dataclass(slots=True)
class StepInputs:
    tokens: Tensor  # [rows] int64
    positions: Tensor  # [rows] int64
    slots: Tensor  # [rows] int64: where each row's K and V go
    decode_tables: Tensor  # [decodes, longest table] int64, padded with block 0
    decode_lengths: Tensor  # [decodes] int64: positions to attend to, the new one included
    chunks: list[Chunk]
    sampled_rows: Tensor  # [sampled] int64

    @property
    def decodes(self) -> int:
        return self.decode_tables.shape[0]


def build_inputs(plan: StepPlan, block_size: int, device: torch.device) -> StepInputs:
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    sampled_rows = []
    for part in plan.slices:
        tokens += part.sequence.ids[part.start : part.end]
        positions += range(part.start, part.end)
        table = part.sequence.table
        slots += [table[at // block_size] * block_size + at % block_size for at in range(part.start, part.end)]
        if part.samples:
            sampled_rows.append(len(tokens) - 1)
    return StepInputs(
        torch.tensor(tokens, device=device),
        torch.tensor(positions, device=device),
        torch.tensor(slots, device=device),
        _padded_tables(plan.decodes, block_size, device),
        torch.tensor([part.end for part in plan.decodes], dtype=torch.int64, device=device),
        _chunks(plan, block_size, device),
        torch.tensor(sampled_rows, dtype=torch.int64, device=device),
    )


def _padded_tables(decodes: list[Slice], block_size: int, device: torch.device) -> Tensor:
    longest = max((-(-part.end // block_size) for part in decodes), default=0)
    rows = [part.sequence.table[:longest] + [0] * (longest - len(part.sequence.table)) for part in decodes]
    return torch.tensor(rows, dtype=torch.int64, device=device).reshape(len(decodes), longest)


def _chunks(plan: StepPlan, block_size: int, device: torch.device) -> list[Chunk]:
    chunks = []
    row = len(plan.decodes)
    for part in plan.prefills:
        table = part.sequence.table[: -(-part.end // block_size)]
        chunks.append(Chunk(slice(row, row + part.count), torch.tensor(table, device=device), part.end))
        row += part.count
    return chunks
