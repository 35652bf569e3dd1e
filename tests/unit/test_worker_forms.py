"""Forms of outputs at the front of a worker: from the frame to the engine, and rejections back."""

import json
from dataclasses import replace

import pytest

from penstock.mesh.forms import CHOICES, FORM_BYTES, Choices, JsonSchema, Regex, form_message
from penstock.mesh.v1.worker_pb2 import Start
from penstock.worker.engine.batching.errors import StartInvalid
from penstock.worker.engine.interface import SequenceRejected, SequenceSpec
from penstock.worker.engine.model_card import ModelCard
from penstock.worker.frames import card_message, run_from
from penstock.worker.runs.limits import RunLimits
from worker_runs import ready_table, rejection_reason, started_run, step_result

SPEC = SequenceSpec(seq_id=1, token_ids=[5, 6], max_output_tokens=4, constraint=Regex("a+"))
LIMITS = RunLimits(context_length=64, vocab_size=100, blocks=16, block_size=4, enforces_forms=True)


def test_a_start_carries_a_form():
    form = JsonSchema('{"type": "integer"}')
    start = Start(token_ids=[5], max_output_tokens=1, form=form_message(form))
    assert run_from(start, stream=1, seq_id=9, now=0.0).spec.constraint == form
    assert run_from(Start(token_ids=[5]), stream=1, seq_id=9, now=0.0).spec.constraint is None


@pytest.mark.parametrize(
    ("changes", "limits", "found"),
    [
        ({}, {"enforces_forms": False}, "enforces no form"),
        ({"constraint": Regex("a" * (FORM_BYTES + 1))}, {}, "at most 65536"),
        ({"constraint": Choices(("a",) * (CHOICES + 1))}, {}, "allowed are 1 to 1024"),
        ({"constraint": Regex("")}, {}, "is empty"),
        ({"ignore_eos": True}, {}, "ignore_eos"),
    ],
)
def test_a_form_that_this_worker_cannot_enforce_fails_its_run_alone(changes, limits, found):
    LIMITS.check(SPEC)
    with pytest.raises(StartInvalid, match=found) as failure:
        replace(LIMITS, **limits).check(replace(SPEC, **changes))
    assert [each.field for each in failure.value.field_violations] == ["form"]


def test_a_worker_that_enforces_forms_is_another_version_of_its_model():
    card = ModelCard(
        name="tiny",
        context_length=512,
        vocab_size=304,
        eos_ids=(2, 0),
        bos_id=1,
        add_bos=False,
        chat_template="",
        tokenizer_json=json.dumps({"added_tokens": []}),
    )
    ignoring, enforcing = card_message(card, 16), card_message(replace(card, enforces_forms=True), 16)
    assert (ignoring.enforces_forms, enforcing.enforces_forms) == (False, True)
    assert ignoring.digest != enforcing.digest


def test_a_form_that_the_engine_rejects_ends_its_run_and_no_other():
    table = ready_table()
    run, other = started_run(table), started_run(table, handle=2, lease="l2", ticket="t2")
    rejected = SequenceRejected(run.seq_id, "FORM_UNSUPPORTED", "uniqueItems")
    effects = table.on_step(step_result(1, other, rejected=[rejected]), 0.0, 0.1)
    assert rejection_reason(effects) == "FORM_UNSUPPORTED"
    assert list(table.running) == [other.seq_id]
    assert table.on_step(step_result(2, rejected=[rejected]), 0.1, 0.2) == []  # already ended
