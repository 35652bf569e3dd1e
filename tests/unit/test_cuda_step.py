"""The packed step of a GPU, and the choice of its kernels. Needs neither a GPU nor Triton."""

import shutil

import pytest
import torch
from structlog.testing import capture_logs

from penstock.worker.engine.batching.sequence import Sequence, Slice, StepPlan
from penstock.worker.engine.cuda import CudaUnavailable, check_cuda, requirements
from penstock.worker.engine.cuda.step import StepPacker, StepShape, unpack
from penstock.worker.engine.interface import SequenceSpec, StepResult
from penstock.worker.engine.options import EngineOptions
from penstock.worker.engine.torch import build

GPU = torch.device("cuda")


def sequence_of(ids, table):
    sequence = Sequence(SequenceSpec(seq_id=0, token_ids=ids, max_output_tokens=9), frozenset())
    sequence.table = table
    return sequence


def packed(packer, plan, shape=None):
    shape = shape or StepShape.of(plan)
    return unpack(torch.tensor(packer.pack(plan, shape), dtype=torch.int32), shape)


def test_a_step_is_its_decodes_and_then_its_chunks():
    decode = Slice(sequence_of([1, 2, 3], [7, 4]), 2, 1)
    middle = Slice(sequence_of([10, 11, 12, 13], [5, 6]), 1, 2)
    last = Slice(sequence_of([20, 21, 22], [8]), 1, 2)
    step = packed(StepPacker(), StepPlan([decode], [middle, last], StepResult(1)))
    assert step.tokens.tolist() == [3, 11, 12, 21, 22]
    assert step.positions.tolist() == [2, 1, 2, 1, 2]
    assert step.row_parts.tolist() == [0, 1, 1, 2, 2]
    assert step.first_rows.tolist() == [0, 1, 3, 5]
    assert step.sampled_rows.tolist() == [0, 4]
    assert step.table_offsets.tolist() == [0, 2, 4]
    assert step.tables.tolist() == [7, 4, 5, 6, 8]
    assert (step.decodes, step.prefills, step.longest_prefill) == (1, 2, 2)


def test_rows_that_pad_a_step_have_no_position():
    plan = StepPlan([Slice(sequence_of([1, 2, 3], [7, 4]), 2, 1)], [], StepResult(1))
    step = packed(StepPacker(), plan, StepShape.decoding(4))
    assert step.positions.tolist() == [2, -1, -1, -1]
    assert step.tokens.tolist() == [3, 0, 0, 0]
    assert step.tables.tolist() == [7, 4]


@pytest.mark.parametrize("rows", [1, 2, 5, 16])
def test_every_section_begins_on_sixteen_bytes(rows):
    decodes = [Slice(sequence_of([1, 2], [row]), 1, 1) for row in range(rows)]
    plan = StepPlan(decodes, [Slice(sequence_of([3], [rows]), 0, 1)], StepResult(1))
    step = packed(StepPacker(), plan)
    sections = (step.tokens, step.positions, step.row_parts, step.table_offsets, step.first_rows, step.sampled_rows)
    assert {each.storage_offset() % 4 for each in (*sections, step.tables)} == {0}


def test_packed_tables_follow_growth_and_replacement():
    packer = StepPacker()
    one, two = sequence_of([1, 2, 3], [7]), sequence_of([4, 5, 6], [9, 2])
    plan = StepPlan([Slice(one, 2, 1), Slice(two, 2, 1)], [], StepResult(1))
    assert packed(packer, plan).tables.tolist() == [7, 9, 2]
    one.table.append(3)
    assert packed(packer, plan).tables.tolist() == [7, 3, 9, 2]
    two.table = [5, 6]
    assert packed(packer, plan).tables.tolist() == [7, 3, 5, 6]


def test_tables_of_old_steps_are_removed():
    packer = StepPacker()
    for block in range(100):
        packed(packer, StepPlan([Slice(sequence_of([1], [block]), 0, 1)], [], StepResult(1)))
    assert len(packer._tables) == 1


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
