"""The kernels of the CUDA forward pass against plain torch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_device import DEVICE, DTYPES
from penstock.worker.engine.batching.sequence import Sequence, Slice, StepPlan
from penstock.worker.engine.cuda.attention import TILE_KEYS, attend_decodes, attend_prefills, split_length
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


class Case:
    """A step over sequences with scattered blocks that are not shared."""

    def __init__(self, decodes, prefills, *, dtype, heads=(4, 2), head_size=16, block_size=4, padding=0):
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
        shape = StepShape.decoding(len(decodes) + padding) if padding else StepShape.of(self.plan)
        run = torch.tensor(StepPacker().pack(self.plan, shape), dtype=torch.int32, device=DEVICE)
        self.step = unpack(run, shape)
        self.inputs = build_inputs(self.plan, block_size, dtype, DEVICE)
        cache = (sum(counts), block_size, self.kv_heads, head_size)
        self.kv = LayerKv(draw(*cache), draw(*cache))
        self.qkv = draw(shape.rows, self.heads + 2 * self.kv_heads, head_size)
        self.split = TILE_KEYS  # the shortest there can be

    @staticmethod
    def _sequence(length, table):
        sequence = Sequence(SequenceSpec(seq_id=0, token_ids=[1] * length, max_output_tokens=1), frozenset())
        sequence.table = table
        return sequence

    def attended(self):
        out = torch.full((len(self.qkv), self.heads, self.head_size), torch.nan, dtype=self.dtype, device=DEVICE)
        if self.step.decodes:
            attend_decodes(self.qkv, self.kv, self.step, out, self.split)
        if self.step.prefills:
            attend_prefills(self.qkv, self.kv, self.step, out)
        return out

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
        shape = StepShape.decoding(1)
        run = torch.tensor(
            StepPacker().pack(StepPlan([part], [], StepResult(1)), shape), dtype=torch.int32, device=DEVICE
        )
        out = torch.empty(1, case.heads, case.head_size, dtype=dtype, device=DEVICE)
        attend_decodes(case.qkv[row : row + 1], case.kv, unpack(run, shape), out, case.split)
        assert torch.equal(out[0], together[row])


def test_a_prefills_bits_do_not_depend_on_its_chunks(dtype):
    case = Case([], [(0, 150)], dtype=dtype)
    whole = case.attended()
    sequence = case.plan.prefills[0].sequence
    for start, count in ((0, 1), (1, 64), (65, 85)):
        plan = StepPlan([], [Slice(sequence, start, count)], StepResult(1))
        shape = StepShape.of(plan)
        run = torch.tensor(StepPacker().pack(plan, shape), dtype=torch.int32, device=DEVICE)
        out = torch.empty(count, case.heads, case.head_size, dtype=dtype, device=DEVICE)
        attend_prefills(case.qkv[start : start + count].contiguous(), case.kv, unpack(run, shape), out)
        assert torch.equal(out, whole[start : start + count])


def test_padding_rows_attend_to_no_position(dtype):
    case = Case([20, 7], [], dtype=dtype, padding=2)
    assert case.step.positions.tolist() == [19, 6, -1, -1]
    out = case.attended()
    torch.testing.assert_close(out[:2], case.expected(), **TOLERANCE[dtype])
    assert torch.equal(out[2:], torch.zeros_like(out[2:]))


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
    case = Case([9], [], dtype=dtype, padding=3)
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


@pytest.mark.parametrize(("context", "split"), [(96, 128), (8192, 128), (8193, 256), (131_072, 2048)])
def test_splits_grow_with_the_context_to_bound_their_number(context, split, dtype):
    assert split_length(context) == split
