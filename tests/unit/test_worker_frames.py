"""Conversions between protobuf frames and the worker's values."""

import json
import math
import zlib

import pytest

from penstock.chassis.errors import DeadlineExceeded
from penstock.mesh.v1.worker_pb2 import Start
from penstock.v1.inference_pb2 import FINISH_REASON_STOP, Sampling
from penstock.worker.engine.interface import FinishReason, SamplingParams, SequenceCancelled, SequenceFinished
from penstock.worker.engine.model_card import ModelCard
from penstock.worker.frames import card_message, ended_frame, run_from, step_frame
from penstock.worker.runs.effects import RunEnded, StepTokens
from penstock.worker.runs.errors import engine_died

CARD = ModelCard(
    name="tiny",
    context_length=512,
    vocab_size=304,
    eos_ids=(2, 0),
    bos_id=1,
    add_bos=False,
    chat_template="{{ messages }}",
    tokenizer_json=json.dumps({"added_tokens": []}),
)


def a_run(**fields):
    return run_from(Start(handle=3, lease_id="l", token_ids=[5, 6], **fields), stream=1, seq_id=9, now=100.0)


def test_a_start_without_deadline_never_expires():
    assert a_run().deadline == math.inf
    assert a_run(time_left_nanos=1_500_000_000).deadline == 101.5
    assert a_run(time_left_nanos=2**64 - 1).deadline == 100.0 + 48 * 3600


def test_absent_sampling_fields_have_the_defaults_of_the_contract():
    assert a_run(sampling=Sampling(seed=4)).spec.sampling == SamplingParams(temperature=1.0, top_p=1.0)
    greedy = a_run(sampling=Sampling(temperature=0.0, top_k=7, repetition_penalty=1.5)).spec.sampling
    assert (greedy.temperature, greedy.top_k, greedy.repetition_penalty) == (0.0, 7, 1.5)
    assert a_run(sampling=Sampling(logit_bias={9: 1.5, 4: -100})).spec.sampling.logit_bias == ((4, -100.0), (9, 1.5))


def test_a_step_is_four_packed_columns_and_logprobs_only_if_requested():
    tokens = StepTokens(1, 12, [3, 4], [70, 80], [0, 9], [-0.5, 0.0])
    assert list(step_frame(tokens).step.logprobs) == []
    tokens.has_logprobs = True
    step = step_frame(tokens).step
    columns = (step.handles, step.token_ids, step.indexes, step.logprobs)
    assert [list(each) for each in columns] == [[3, 4], [70, 80], [0, 9], [-0.5, 0.0]]
    assert step.step == 12


def test_a_failure_reports_whether_an_engine_had_the_run():
    run = a_run()
    assert ended_frame(RunEnded(run, engine_died(), at=101.5, step=12, is_reported=True)).failed.never_ran
    run.has_reached_engine = True
    assert not ended_frame(RunEnded(run, engine_died(), at=101.5, step=12, is_reported=True)).failed.never_ran


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (SequenceFinished(9, FinishReason.STOP, 4, 2), "finished"),
        (SequenceCancelled(9, 4, 6), "cancelled"),
        (DeadlineExceeded("late"), "failed"),
    ],
)
def test_each_outcome_has_its_frame_under_the_runs_handle(outcome, kind):
    frame = ended_frame(RunEnded(a_run(), outcome, at=101.5, step=12, is_reported=True))
    assert frame.WhichOneof("frame") == kind
    assert getattr(frame, kind).handle == 3


def test_an_end_has_the_time_of_each_phase():
    run = a_run()
    run.on_admitted(2, 100.25)
    run.add_token(5, 101.0)
    run.add_token(5, 103.0)
    finished = ended_frame(
        RunEnded(run, SequenceFinished(9, FinishReason.STOP, 2, 2), at=103.0, step=12, is_reported=True)
    ).finished
    times = [each.ToTimedelta().total_seconds() for each in (finished.times.wait, finished.times.prefill)]
    assert times == [0.25, 0.75]
    assert finished.times.decode.ToTimedelta().total_seconds() == 2.0
    assert (finished.reason, finished.output_tokens, finished.cached_prompt_tokens) == (FINISH_REASON_STOP, 2, 2)


def test_equal_cards_have_equal_digests():
    message = card_message(CARD, 16)
    assert message.digest == card_message(CARD, 16).digest
    assert message.digest != card_message(CARD, 32).digest
    assert json.loads(zlib.decompress(message.tokenizer_json_zlib)) == {"added_tokens": []}
    assert not message.HasField("bos_token_id")  # the model has one and does not want it before raw text
