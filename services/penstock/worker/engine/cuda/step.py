"""A step's plan as one run of int32, so that a single copy brings it to the GPU. Launches nothing itself."""

from array import array
from dataclasses import dataclass

from torch import Tensor

from penstock.worker.engine.plan import StepPlan

_ALIGNED = 4  # int32: kernels are compiled anew for pointers of another alignment than 16 bytes


@dataclass(frozen=True, slots=True)
class StepShape:
    """What kernels' grids follow from: equal shapes lay their steps out alike."""

    rows: int
    decodes: int  # leading rows, each of a sequence of its own
    prefills: int  # chunks after them
    longest_prefill: int  # rows
    sampled: int

    @classmethod
    def of(cls, plan: StepPlan) -> "StepShape":
        counts = [part.count for part in plan.prefills]
        decodes = len(plan.decodes)
        return cls(decodes + sum(counts), decodes, len(counts), max(counts, default=0), len(plan.sampled))

    @classmethod
    def decoding(cls, rows: int) -> "StepShape":
        return cls(rows, rows, 0, 0, rows)

    @property
    def sections(self) -> tuple[int, ...]:
        """Lengths of all sections but the last, the tables', in the order of `StepTensors`."""
        parts = self.decodes + self.prefills
        return (self.rows, self.rows, self.rows, parts, parts + 1, self.sampled)

    @property
    def header(self) -> int:
        return sum(map(_aligned, self.sections))


@dataclass(slots=True)
class StepTensors:
    """Views of one int32 run. A part is a decode or a prefill chunk. Rows that pad a step have position -1."""

    shape: StepShape
    tokens: Tensor  # [rows]
    positions: Tensor  # [rows]
    owners: Tensor  # [rows]: part of each row
    table_offsets: Tensor  # [parts]: where in `tables` each part's table begins
    first_rows: Tensor  # [parts + 1]: first row of each part, and the number of rows
    sampled_rows: Tensor  # [sampled]
    tables: Tensor  # block tables, one after another

    @property
    def decodes(self) -> int:
        return self.shape.decodes

    @property
    def prefills(self) -> int:
        return self.shape.prefills

    @property
    def longest_prefill(self) -> int:
        return self.shape.longest_prefill


def pack(plan: StepPlan, shape: StepShape, block_size: int) -> "array[int]":
    """The plan laid out for `shape`: its own, or one of more decodes, whose rows beyond the plan's are padding."""
    tokens, positions, owners, offsets, first_rows, sampled, tables = (array("i") for _ in range(7))
    for number, part in enumerate(plan.slices):
        offsets.append(len(tables))
        first_rows.append(len(tokens))
        tables.extend(part.sequence.table[: -(-part.end // block_size)])
        tokens.extend(part.sequence.ids[part.start : part.end])
        positions.extend(range(part.start, part.end))
        owners.extend([number] * part.count)
        if part.samples:
            sampled.append(len(tokens) - 1)
    first_rows.append(len(tokens))
    positions.extend([-1] * (shape.rows - len(positions)))
    packed = array("i")
    for section, length in zip((tokens, positions, owners, offsets, first_rows, sampled), shape.sections, strict=True):
        packed += section
        packed.extend([0] * (_aligned(length) - len(section)))
    return packed + tables


def unpack(run: Tensor, shape: StepShape) -> StepTensors:
    views = []
    at = 0
    for length in shape.sections:
        views.append(run[at : at + length])
        at += _aligned(length)
    return StepTensors(shape, *views, tables=run[at:])


def _aligned(length: int) -> int:
    return -(-length // _ALIGNED) * _ALIGNED
