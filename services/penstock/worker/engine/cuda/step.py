"""A step's plan packed into one int32 buffer, so that a single copy moves it to the GPU."""

from array import array
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from torch import Tensor

from penstock.worker.engine.batching.sequence import Slice, StepPlan

_ALIGNMENT_WORDS = 4  # int32 words, as kernels are recompiled for pointers without 16-byte alignment


@dataclass(frozen=True, slots=True)
class StepShape:
    """The counts that determine the kernels' grids and the layout of the buffer."""

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
        """Lengths of all sections except the last (`tables`), in the order of `StepTensors`."""
        parts = self.decodes + self.prefills
        return (self.rows, self.rows, self.rows, parts, parts + 1, self.sampled)

    @property
    def header(self) -> int:
        return sum(map(_aligned, self.sections))


@dataclass(slots=True)
class StepTensors:
    """Views of one int32 buffer. A part is a decode or a prefill chunk. Padding rows have position -1."""

    shape: StepShape
    tokens: Tensor  # [rows]
    positions: Tensor  # [rows]
    row_parts: Tensor  # [rows]: part of each row
    table_offsets: Tensor  # [parts]: start of each part's table in `tables`
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


class StepPacker:
    """Packs plans. Caches packed block tables across steps, as packing all of them takes longer than a short step."""

    def __init__(self) -> None:
        self._tables: dict[int, _PackedTable] = {}  # of the last step, by the identity of the table

    def pack(self, plan: StepPlan, shape: StepShape) -> "array[int]":
        """Pack the plan for `shape`, which is its own or has more decodes; the additional rows are padding."""
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
        first_rows.append(len(tokens))
        positions.extend([-1] * (shape.rows - len(positions)))
        offsets, tables = self._pack_tables(plan.slices)
        packed = array("i")
        sections = (tokens, positions, row_parts, offsets, first_rows, sampled)
        for section, length in zip(sections, shape.sections, strict=True):
            packed += section
            packed.extend([0] * (_aligned(length) - len(section)))
        return packed + tables

    def _pack_tables(self, parts: list[Slice]) -> "tuple[array[int], array[int]]":
        """Return the start of each part's table, and all tables in one array."""
        known, self._tables = self._tables, {}
        offsets, tables = array("i"), array("i")
        for part in parts:
            table = part.sequence.table
            kept = known.get(id(table)) or _PackedTable(table, array("i"))
            if len(kept.packed) < len(table):
                kept.packed.extend(table[len(kept.packed) :])
            self._tables[id(table)] = kept
            offsets.append(len(tables))
            tables += kept.packed
        return offsets, tables


class _PackedTable(NamedTuple):
    """A block table and its packed copy. A sequence keeps its list as long as its blocks, and only appends to it."""

    blocks: list[int]  # referenced, so that no other list gets its identity
    packed: "array[int]"


def unpack(buffer: Tensor, shape: StepShape) -> StepTensors:
    starts = accumulate(map(_aligned, shape.sections), initial=0)
    views = (buffer[start : start + length] for start, length in zip(starts, shape.sections, strict=False))
    tokens, positions, row_parts, offsets, first_rows, sampled_rows = views
    return StepTensors(shape, tokens, positions, row_parts, offsets, first_rows, sampled_rows, buffer[shape.header :])


def _aligned(length: int) -> int:
    return -(-length // _ALIGNMENT_WORDS) * _ALIGNMENT_WORDS
