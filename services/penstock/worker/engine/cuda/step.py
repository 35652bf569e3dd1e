"""A step's plan packed into one int32 buffer, so that a single copy moves it to the GPU."""

from array import array
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from torch import Tensor

from penstock.worker.engine.batching.sequence import Slice, StepPlan
from penstock.worker.engine.cuda.resident import ResidentLists

_ALIGNMENT_WORDS = 4  # int32 words, as kernels are recompiled for pointers without 16-byte alignment


@dataclass(frozen=True, slots=True)
class StepShape:
    """The room for a step, which determines the kernels' grids and the layout of the buffer.

    A step may have less of each; the kernels read its own counts from the buffer.
    """

    rows: int
    decodes: int  # leading rows, each of a sequence of its own
    prefills: int  # chunks after them
    parts: int  # decodes and prefills together
    sampled: int

    @classmethod
    def of(cls, plan: StepPlan) -> "StepShape":
        decodes, prefills = len(plan.decodes), len(plan.prefills)
        rows = decodes + sum(part.count for part in plan.prefills)
        return cls(rows, decodes, prefills, decodes + prefills, len(plan.sampled))

    @classmethod
    def decoding(cls, rows: int) -> "StepShape":
        """The room for up to `rows` decodes."""
        return cls(rows, rows, 0, rows, rows)

    @classmethod
    def mixed(cls, rows: int, slots: int) -> "StepShape":
        """The room for any step of up to `rows` rows of up to `slots` sequences."""
        parts = min(rows, slots)
        return cls(rows, parts, parts, parts, parts)

    @property
    def sections(self) -> tuple[int, ...]:
        """Lengths of all sections, in the order of `StepTensors`."""
        return (2, self.rows, self.rows, self.rows, self.parts, self.parts + 1, self.sampled)

    @property
    def length(self) -> int:
        return sum(map(_aligned, self.sections))


@dataclass(slots=True)
class StepTensors:
    """Views of one int32 buffer, and the block tables. A part is a decode or a prefill chunk.

    Padding rows have position -1.
    """

    shape: StepShape
    counts: Tensor  # [2]: decodes and prefills of the step
    tokens: Tensor  # [rows]
    positions: Tensor  # [rows]
    row_parts: Tensor  # [rows]: part of each row
    table_offsets: Tensor  # [parts]: start of each part's table in `tables`
    first_rows: Tensor  # [parts + 1]: first row of each part, then the number of rows
    sampled_rows: Tensor  # [sampled]
    tables: Tensor  # block tables, one row per resident sequence, flat


class PackedStep(NamedTuple):
    header: "array[int]"  # the sections of `StepShape`
    changed_places: "array[int]"  # in the block tables
    changed_blocks: "array[int]"  # their new values


class StepPacker:
    """Packs plans. The block tables stay on the GPU; a step sends the blocks that were added since the last one."""

    def __init__(self, slots: int, table_length: int) -> None:
        self.table_length = table_length  # blocks of the longest sequence
        self._tables = ResidentLists(slots)

    def pack(self, plan: StepPlan, shape: StepShape) -> PackedStep:
        """Pack the plan for `shape`, which is its own or has more room; the additional rows are padding."""
        decodes, count = plan.decodes, len(plan.decodes)
        tokens = array("i", [part.sequence.ids[part.start] for part in decodes])
        positions = array("i", [part.start for part in decodes])
        row_parts, first_rows, sampled = (array("i", range(count)) for _ in range(3))
        for part in plan.prefills:
            row_parts.extend([len(first_rows)] * part.count)
            first_rows.append(len(tokens))
            tokens.extend(part.sequence.ids[part.start : part.end])
            positions.extend(range(part.start, part.end))
            if part.is_sampled:
                sampled.append(len(tokens) - 1)
        positions.extend([-1] * (shape.rows - len(positions)))
        first_rows.append(len(tokens))
        offsets, places, blocks = self._pack_tables(plan.slices)
        header = array("i")
        sections = (array("i", [count, len(plan.prefills)]), tokens, positions, row_parts, offsets, first_rows, sampled)
        for section, length in zip(sections, shape.sections, strict=True):
            header += section
            header.extend([0] * (_aligned(length) - len(section)))
        return PackedStep(header, places, blocks)

    def _pack_tables(self, parts: list[Slice]) -> "tuple[array[int], array[int], array[int]]":
        """Return the start of each part's table, and the places and the blocks that changed."""
        offsets, places, blocks = array("i"), array("i"), array("i")
        for resident in self._tables.assign([part.sequence.table for part in parts]):
            start = resident.row * self.table_length
            offsets.append(start)
            length = len(resident.values)
            if resident.sent < length:
                places.extend(range(start + resident.sent, start + length))
                blocks.extend(resident.unsent())
                resident.sent = length
        return offsets, places, blocks


def unpack(buffer: Tensor, shape: StepShape, tables: Tensor) -> StepTensors:
    """Return the views of a buffer. tables: [slots * table_length], which the changed blocks were written to."""
    starts = accumulate(map(_aligned, shape.sections), initial=0)
    views = (buffer[start : start + length] for start, length in zip(starts, shape.sections, strict=False))
    counts, tokens, positions, row_parts, offsets, first_rows, sampled_rows = views
    return StepTensors(shape, counts, tokens, positions, row_parts, offsets, first_rows, sampled_rows, tables)


def _aligned(length: int) -> int:
    return -(-length // _ALIGNMENT_WORDS) * _ALIGNMENT_WORDS
