"""The packed step of a GPU, and the choice of its kernels. Needs neither a GPU nor Triton."""

import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from penstock.worker.engine.batching.sequence import Sequence, Slice, StepPlan
from penstock.worker.engine.cuda import CudaUnavailable, check_cuda, requirements
from penstock.worker.engine.cuda.buckets import bucket_for, decode_buckets, mixed_buckets
from penstock.worker.engine.cuda.step import StepPacker, StepShape, unpack
from penstock.worker.engine.interface import SequenceSpec, StepResult
from penstock.worker.engine.options import EngineOptions
from penstock.worker.engine.torch import build

GPU = torch.device("cuda")


def sequence_of(ids, table):
    sequence = Sequence(SequenceSpec(seq_id=0, token_ids=ids, max_output_tokens=9), frozenset())
    sequence.table = table
    return sequence


def packer_of(slots=8, table_length=4):
    return StepPacker(slots, table_length)


class Device:
    """The buffers on the GPU: block tables that every step changes, and the header of the last step."""

    def __init__(self, packer, slots=8):
        self.packer = packer
        self.tables = torch.full((slots * packer.table_length,), -1, dtype=torch.int32)

    def send(self, plan, shape=None):
        shape = shape or StepShape.of(plan)
        packed = self.packer.pack(plan, shape)
        self.tables[list(packed.changed_places)] = torch.tensor(packed.changed_blocks, dtype=torch.int32)
        self.changed = list(packed.changed_blocks)
        return unpack(torch.tensor(packed.header, dtype=torch.int32), shape, self.tables)

    def table(self, step, part, length):
        start = int(step.table_offsets[part])
        return self.tables[start : start + length].tolist()


def test_a_step_is_its_decodes_and_then_its_chunks():
    decode = Slice(sequence_of([1, 2, 3], [7, 4]), 2, 1)
    middle = Slice(sequence_of([10, 11, 12, 13], [5, 6]), 1, 2)
    last = Slice(sequence_of([20, 21, 22], [8]), 1, 2)
    device = Device(packer_of())
    step = device.send(StepPlan([decode], [middle, last], StepResult(1)))
    assert step.counts.tolist() == [1, 2]
    assert step.tokens.tolist() == [3, 11, 12, 21, 22]
    assert step.positions.tolist() == [2, 1, 2, 1, 2]
    assert step.row_parts.tolist() == [0, 1, 1, 2, 2]
    assert step.first_rows.tolist() == [0, 1, 3, 5]
    assert step.sampled_rows.tolist() == [0, 4]
    assert [device.table(step, part, length) for part, length in enumerate((2, 2, 1))] == [[7, 4], [5, 6], [8]]


def test_rows_that_pad_a_step_have_no_position():
    plan = StepPlan([Slice(sequence_of([1, 2, 3], [7, 4]), 2, 1)], [], StepResult(1))
    device = Device(packer_of())
    step = device.send(plan, StepShape.decoding(4))
    assert step.counts.tolist() == [1, 0]
    assert step.positions.tolist() == [2, -1, -1, -1]
    assert step.tokens.tolist() == [3, 0, 0, 0]
    assert device.table(step, 0, 2) == [7, 4]


def test_a_step_with_prefills_fits_into_a_larger_one():
    decode = Slice(sequence_of([1, 2, 3], [7, 4]), 2, 1)
    chunk = Slice(sequence_of([20, 21, 22], [8]), 1, 2)
    step = Device(packer_of()).send(StepPlan([decode], [chunk], StepResult(1)), StepShape.mixed(6, 8))
    assert step.counts.tolist() == [1, 1]
    assert step.positions.tolist() == [2, 1, 2, -1, -1, -1]
    assert step.first_rows.tolist()[:3] == [0, 1, 3]
    assert step.sampled_rows.tolist()[:2] == [0, 2]


@pytest.mark.parametrize("rows", [1, 2, 5, 16])
def test_every_section_begins_on_sixteen_bytes(rows):
    decodes = [Slice(sequence_of([1, 2], [row]), 1, 1) for row in range(rows)]
    plan = StepPlan(decodes, [Slice(sequence_of([3], [rows]), 0, 1)], StepResult(1))
    step = Device(packer_of(32), 32).send(plan)
    sections = (step.tokens, step.positions, step.row_parts, step.table_offsets, step.first_rows, step.sampled_rows)
    assert {each.storage_offset() % 4 for each in sections} == {0}


def test_a_step_sends_the_blocks_that_are_new_alone():
    device = Device(packer_of())
    one, two = sequence_of([1, 2, 3], [7]), sequence_of([4, 5, 6], [9, 2])
    plan = StepPlan([Slice(one, 2, 1), Slice(two, 2, 1)], [], StepResult(1))
    device.send(plan)
    assert device.changed == [7, 9, 2]
    device.send(plan)
    assert device.changed == []
    one.table.append(3)
    step = device.send(plan)
    assert device.changed == [3]
    two.table = [5, 6, 1]
    step = device.send(plan)
    assert device.changed == [5, 6, 1]
    assert [device.table(step, 0, 2), device.table(step, 1, 3)] == [[7, 3], [5, 6, 1]]


def test_the_bytes_of_a_step_do_not_grow_with_its_sequences_lengths():
    def bytes_of_a_step(blocks):
        device = Device(packer_of(8, blocks))
        plan = StepPlan([Slice(sequence_of([1] * 9, [1] * blocks), 8, 1)], [], StepResult(1))
        device.send(plan)
        packed = device.packer.pack(plan, StepShape.of(plan))
        return sum(len(each) for each in packed)

    assert bytes_of_a_step(8000) == bytes_of_a_step(1)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.booleans()), max_size=40))
def test_resident_tables_follow_joining_growing_and_replaced_sequences(changes):
    """Six sequences take turns in four slots; each step has all but two, some with new blocks or a new table."""
    device = Device(packer_of(4, 200), 4)
    sequences = [sequence_of([1], [index]) for index in range(6)]
    for absent, added, is_replaced in changes:
        parts = [each for index, each in enumerate(sequences) if index not in {absent, (absent + 1) % 6}]
        if is_replaced:
            parts[0].table = [50 + absent]
        for each in parts:
            each.table.extend(range(added))
        step = device.send(StepPlan([Slice(each, 0, 1) for each in parts], [], StepResult(1)))
        for part, each in enumerate(parts):
            assert device.table(step, part, len(each.table)) == each.table


def test_rows_of_ended_sequences_are_reused():
    device = Device(packer_of(2), 2)
    for block in range(100):
        step = device.send(StepPlan([Slice(sequence_of([1], [block]), 0, 1)], [], StepResult(1)))
        assert device.table(step, 0, 1) == [block]
    assert len(device.packer._tables._residents) <= 2


@given(st.integers(1, 1100))
def test_a_decode_step_is_padded_by_at_most_an_eighth(slots):
    buckets = decode_buckets(slots)
    assert buckets == sorted(set(buckets))
    assert buckets[-1] == slots
    for rows in range(1, slots + 1):
        assert rows <= bucket_for(buckets, rows) <= max(rows + rows / 8, rows + 7 if rows > 4 else rows + 1)


def test_129_rows_are_not_padded_to_256():
    assert bucket_for(decode_buckets(256), 129) == 144


def test_steps_with_prefills_beyond_the_largest_graph_have_none():
    assert [bucket_for(mixed_buckets(512), rows) for rows in (1, 64, 65, 512, 513)] == [64, 64, 128, 512, None]


# Requirements of the machine.


@pytest.fixture
def able(monkeypatch):
    """A machine that meets all requirements."""
    monkeypatch.setattr(requirements, "find_spec", lambda name: object())
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    return monkeypatch


def test_a_machine_that_meets_all_requirements_is_accepted(able):
    check_cuda(GPU)


def test_a_missing_requirement_is_named(able):
    with able.context() as lacking:
        lacking.setattr(requirements, "find_spec", lambda name: None)
        with pytest.raises(CudaUnavailable, match="torch's CUDA build"):
            check_cuda(GPU)
    with able.context() as lacking:
        lacking.setattr(shutil, "which", lambda name: None)
        with pytest.raises(CudaUnavailable, match="install gcc"):
            check_cuda(GPU)
    with able.context() as lacking:
        lacking.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
        with pytest.raises(CudaUnavailable, match="7, 5"):
            check_cuda(GPU)


def test_without_kernels_plain_torch_serves_and_logs_it_once(able):
    able.setattr(requirements, "find_spec", lambda name: None)
    with capture_logs() as logs:
        assert not build._can_use_kernels(EngineOptions(), GPU)
    assert [(line["event"], line["instead"]) for line in logs] == [("kernels_unavailable", "torch")]


def test_required_kernels_that_are_unavailable_stop_the_start(able):
    able.setattr(requirements, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="Triton is not installed"):
        build._can_use_kernels(EngineOptions(compute="native"), GPU)


def test_plain_torch_is_used_on_request(able):
    assert build._can_use_kernels(EngineOptions(), GPU)
    assert not build._can_use_kernels(EngineOptions(compute="torch"), GPU)
