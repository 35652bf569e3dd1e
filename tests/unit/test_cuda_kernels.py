"""The kernels of the CUDA forward pass against plain torch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_device import DEVICE, DTYPES
from penstock.worker.engine.batching.sequence import Sequence, Slice, StepPlan
from penstock.worker.engine.cuda import attention
from penstock.worker.engine.cuda.attention import (
    MAX_SPLITS,
    TILE_KEYS,
    DecodeSplits,
    attend_decodes,
    attend_prefills,
    plan_splits,
    plan_tiles,
)
from penstock.worker.engine.cuda.rows import add_norm, rotate_and_write, silu_multiply
from penstock.worker.engine.cuda.step import StepPacker, StepShape, unpack
from penstock.worker.engine.interface import SequenceSpec, StepResult
from penstock.worker.engine.torch.attention import attend
from penstock.worker.engine.torch.inputs import build_inputs
from penstock.worker.engine.torch.kv_cache import LayerKv
from penstock.worker.engine.torch.model import rotate
from penstock.worker.engine.torch.weights import rope_frequencies, rope_tables

pytestmark = pytest.mark.parametrize("dtype", DTYPES, ids=str)
TOLERANCE = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}, torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2}}
CONTEXT = 300


def step_of(plan, block_size, shape=None):
    """The tensors of a plan, as the runner makes them."""
    shape = shape or StepShape.of(plan)
    slots = max(shape.parts, len(plan.slices))
    packer = StepPacker(slots, max((len(part.sequence.table) for part in plan.slices), default=1))
    packed = packer.pack(plan, shape)
    tables = torch.zeros(slots * packer.table_length, dtype=torch.int32)
    tables[list(packed.changed_places)] = torch.tensor(packed.changed_blocks, dtype=torch.int32)
    header = torch.tensor(packed.header, dtype=torch.int32, device=DEVICE)
    return unpack(header, shape, tables.to(DEVICE))


class Case:
    """A step over sequences with scattered blocks that are not shared."""

    def __init__(self, decodes, prefills, *, dtype, heads=(4, 2), head_size=16, block_size=4, shape=None):
        self.heads, self.kv_heads = heads
        self.head_size, self.block_size, self.dtype = head_size, block_size, dtype
        generator = torch.Generator().manual_seed(len(decodes) + sum(map(sum, prefills)))

        def draw(*size):
            return torch.randn(size, generator=generator).to(DEVICE, dtype)

        ends = [*decodes, *(start + count for start, count in prefills)]
        counts = [-(-end // block_size) for end in ends]
        blocks = iter(torch.randperm(sum(counts), generator=generator).tolist())
        tables = [[next(blocks) for _ in range(count)] for count in counts]
        sequences = [self._sequence(end, table) for end, table in zip(ends, tables, strict=True)]
        decoding = [Slice(sequence, end - 1, 1) for sequence, end in zip(sequences, decodes, strict=False)]
        prefilling = [
            Slice(sequence, *part) for sequence, part in zip(sequences[len(decodes) :], prefills, strict=True)
        ]
        self.plan = StepPlan(decoding, prefilling, StepResult(1))
        self.step = step_of(self.plan, block_size, shape)
        self.inputs = build_inputs(self.plan, block_size, dtype, DEVICE)
        cache = (sum(counts), block_size, self.kv_heads, head_size)
        self.kv = LayerKv(draw(*cache), draw(*cache))
        self.qkv = draw(self.step.shape.rows, self.heads + 2 * self.kv_heads, head_size)

    @staticmethod
    def _sequence(length, table):
        sequence = Sequence(SequenceSpec(seq_id=0, token_ids=[1] * length, max_output_tokens=1), frozenset())
        sequence.table = table
        return sequence

    def attended(self):
        return self.attend(self.qkv, self.step)

    def attend(self, qkv, step):
        out = torch.full((len(qkv), self.heads, self.head_size), torch.nan, dtype=self.dtype, device=DEVICE)
        if step.shape.decodes:
            splits = self.splits(step)
            attend_decodes(qkv, self.kv, step, out, splits)
        if step.shape.prefills:
            attend_prefills(qkv, self.kv, step, out, plan_tiles(step, self.heads // self.kv_heads, step.shape.parts))
        return out

    def splits(self, step):
        """The planned splits, the shortest there can be."""
        splits = DecodeSplits.allocate(
            step.shape.decodes,
            self.heads,
            self.head_size,
            context_length=max(CONTEXT, *(part.end for part in self.plan.slices), 0),
            device=DEVICE,
            min_split_keys=TILE_KEYS,
        )
        plan_splits(step, splits)
        return splits

    def expected(self):
        rows = len(self.inputs.tokens)
        return attend(self.qkv[:rows, : self.heads], self.kv, self.inputs).view(rows, self.heads, self.head_size)


SIZES = {
    "two to one": {},
    "alike": {"heads": (3, 3)},
    "three to one": {"heads": (3, 1), "head_size": 20},
    "forty to one": {"heads": (40, 1)},
    "heads of 80": {"heads": (4, 2), "head_size": 80, "block_size": 16},
}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_attention_equals_that_of_plain_torch(size, dtype):
    case = Case([1, 64, 65, 200], [(0, 1), (0, 70), (33, 40), (5, 1)], dtype=dtype, **size)
    torch.testing.assert_close(case.attended(), case.expected(), **TOLERANCE[dtype])


@settings(max_examples=15, deadline=None)
@given(
    decodes=st.lists(st.integers(1, 200), max_size=4),
    prefills=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60)), max_size=3),
    block_size=st.sampled_from([1, 3, 16]),
)
def test_attention_equals_that_of_plain_torch_in_any_batch(*, dtype, decodes, prefills, block_size):
    if decodes or prefills:
        case = Case(decodes, prefills, dtype=dtype, block_size=block_size)
        torch.testing.assert_close(case.attended(), case.expected(), **TOLERANCE[dtype])


def test_a_decodes_bits_do_not_depend_on_its_batch_mates(dtype):
    case = Case([70, 5, 200, 33], [], dtype=dtype)
    together = case.attended()
    for row, part in enumerate(case.plan.decodes):
        step = step_of(StepPlan([part], [], StepResult(1)), case.block_size)
        assert torch.equal(case.attend(case.qkv[row : row + 1], step)[0], together[row])


def test_a_prefills_bits_do_not_depend_on_its_chunks(dtype):
    case = Case([], [(0, 150)], dtype=dtype)
    whole = case.attended()
    sequence = case.plan.prefills[0].sequence
    for start, count in ((0, 1), (1, 64), (65, 85)):
        plan = StepPlan([], [Slice(sequence, start, count)], StepResult(1))
        step = step_of(plan, case.block_size)
        out = case.attend(case.qkv[start : start + count].contiguous(), step)
        assert torch.equal(out, whole[start : start + count])


def test_padding_rows_are_not_written(dtype):
    case = Case([20, 7], [], dtype=dtype, shape=StepShape.decoding(4))
    assert case.step.positions.tolist() == [19, 6, -1, -1]
    out = case.attended()
    torch.testing.assert_close(out[:2], case.expected(), **TOLERANCE[dtype])
    assert out[2:].isnan().all()


@pytest.mark.parametrize("normed", [False, True])
def test_rows_are_rotated_and_written_to_the_slots_of_their_tables(normed, dtype):
    case = Case([9, 30], [(6, 5)], dtype=dtype, head_size=20)
    rope = tuple(each.to(DEVICE) for each in rope_tables(rope_frequencies(20, 100.0), CONTEXT))
    norms = torch.rand(2, 20, device=DEVICE) + 0.5 if normed else None
    q, k, v = case.qkv.clone().split([case.heads, case.kv_heads, case.kv_heads], dim=1)
    if normed:
        q, k = (
            torch.nn.functional.rms_norm(x.float(), (20,), norm, 1e-5).to(dtype)
            for x, norm in zip((q, k), norms, strict=True)
        )
    cos, sin = (each[case.inputs.positions, None] for each in rope)
    expected = LayerKv(case.kv.k.clone(), case.kv.v.clone())
    expected.write(case.inputs.slots, rotate(k, cos, sin), v)
    rotate_and_write(case.qkv, rope, norms, case.kv, case.step, eps=1e-5)
    torch.testing.assert_close(case.qkv[:, : case.heads], rotate(q, cos, sin), **TOLERANCE[dtype])
    torch.testing.assert_close(case.kv.k, expected.k, **TOLERANCE[dtype])
    assert torch.equal(case.kv.v, expected.v)


def test_padding_rows_write_nothing(dtype):
    case = Case([9], [], dtype=dtype, shape=StepShape.decoding(4))
    rope = tuple(each.to(DEVICE) for each in rope_tables(rope_frequencies(16, 100.0), CONTEXT))
    before = case.kv.k.clone()
    rotate_and_write(case.qkv, rope, None, case.kv, case.step, eps=1e-5)
    changed = (case.kv.k != before).flatten(2).any(-1).flatten().nonzero().flatten()
    assert changed.tolist() == case.inputs.slots.tolist()


@pytest.mark.parametrize("dim", [64, 300, 1030])
def test_the_update_is_added_before_the_norm(dim, dtype):
    residual, weight = torch.randn(5, dim, device=DEVICE), torch.rand(dim, device=DEVICE) + 0.5
    update = torch.randn(5, dim, device=DEVICE).to(dtype)
    for added in (None, update):
        stream = residual.clone()
        out = add_norm(stream, added, weight, 1e-5, dtype)
        expected = residual if added is None else residual + added
        assert torch.equal(stream, expected)
        norm = torch.nn.functional.rms_norm(expected, (dim,), weight, 1e-5).to(dtype)
        torch.testing.assert_close(out, norm, **TOLERANCE[dtype])


@pytest.mark.parametrize("hidden", [16, 1030])
def test_gates_are_multiplied(hidden, dtype):
    gate_up = (3 * torch.randn(3, 2 * hidden, device=DEVICE)).to(dtype)
    gate, up = gate_up.float().chunk(2, dim=1)
    expected = (torch.nn.functional.silu(gate) * up).to(dtype)
    torch.testing.assert_close(silu_multiply(gate_up), expected, **TOLERANCE[dtype])


class Grids:
    """A kernel that records the grids of its launches."""

    def __init__(self, kernel):
        self.kernel, self.seen = kernel, []

    def __getitem__(self, grid):
        self.seen.append(grid)
        return self.kernel[grid]


def splits_of(case):
    """[splits of all rows, 3]: row, first key, and the key after the last."""
    work = case.splits(case.step)
    return work.splits[: work.first_splits[-1]].tolist()


def test_splits_cover_the_keys_of_each_row_once(dtype):
    lengths = [1, 64, 65, 4096, 4097, 9000]
    case = Case(lengths, [], dtype=dtype, heads=(1, 1), shape=StepShape.decoding(8))
    for row, length in enumerate(lengths):
        parts = [(begin, end) for at, begin, end in splits_of(case) if at == row]
        assert [begin for begin, _ in parts] == [0, *(end for _, end in parts[:-1])]
        assert parts[-1][1] == length
        assert len(parts) <= MAX_SPLITS
    assert {row for row, _, _ in splits_of(case)} == set(range(len(lengths)))


def test_a_long_row_beside_a_full_batch_is_divided_among_the_programs(dtype):
    """The keys of the busiest program, which the step waits for, stay near the mean of all programs."""
    lengths = [100_000, *[500] * 63]
    case = Case(lengths, [], dtype=dtype, heads=(1, 1), head_size=4, block_size=64)
    programs = 64
    keys = [0] * programs
    for place, (_, begin, end) in enumerate(splits_of(case)):
        keys[place % programs] += end - begin
    assert max(keys) <= 2 * sum(lengths) / programs + 2048


def test_a_long_row_beside_short_ones_equals_that_of_plain_torch(dtype, monkeypatch):
    grids = Grids(attention.decode_kernel)
    monkeypatch.setattr(attention, "decode_kernel", grids)
    monkeypatch.setattr(attention, "DECODE_PROGRAMS", 14)
    case = Case([6000, 3, 70, 1], [(0, 5)], dtype=dtype, block_size=16, shape=StepShape.mixed(16, 6))
    torch.testing.assert_close(case.attended()[:9], case.expected(), **TOLERANCE[dtype])
    assert grids.seen == [(7, 2)]  # whatever the number of rows


def test_tiles_cover_each_chunk_in_a_step_with_more_room(dtype):
    case = Case([5], [(0, 70), (3, 1), (0, 32)], dtype=dtype, shape=StepShape.mixed(128, 8))
    work = plan_tiles(case.step, 2, 8)
    tiles = work.tiles[: work.total].tolist()
    assert work.tokens == 32
    assert tiles == [[1, 1], [1, 33], [1, 65], [2, 71], [3, 72]]
    assert len(work.tiles) >= len(tiles)
