"""Embeddings in the worker's frames and limits."""

import json
import struct
from dataclasses import replace

import pytest

from penstock.mesh.v1.worker_pb2 import Start
from penstock.worker.engine.batching.errors import EmbeddingUnsupported, StartInvalid
from penstock.worker.engine.interface import AllowedTokens, FinishReason, SequenceFinished, SequenceSpec
from penstock.worker.engine.model_card import ModelCard
from penstock.worker.frames import card_message, ended_frame, run_from
from penstock.worker.runs.effects import RunEnded
from penstock.worker.runs.limits import RunLimits

SPEC = SequenceSpec(seq_id=1, token_ids=[5, 6], max_output_tokens=1, embeds=True)
LIMITS = RunLimits(context_length=64, vocab_size=100, blocks=16, block_size=4, embeds=True)


def test_a_start_and_its_end_carry_an_embedding():
    start = Start(handle=3, lease_id="l", token_ids=[5, 6], max_output_tokens=1, embeds=True)
    run = run_from(start, stream=1, seq_id=9, now=100.0)
    assert run.spec.embeds
    outcome = SequenceFinished(9, FinishReason.STOP, 0, 0, struct.pack("<3f", 0.5, -0.25, 0.0))
    finished = ended_frame(RunEnded(run, outcome, at=101.5, step=12, is_reported=True)).finished
    assert list(finished.embedding) == [0.5, -0.25, 0.0]
    assert finished.times.prefill.ToTimedelta().total_seconds() == 0.0  # never admitted
    assert not run_from(Start(token_ids=[5]), stream=1, seq_id=9, now=100.0).spec.embeds


def test_size_and_pooling_are_part_of_the_version():
    card = ModelCard(
        name="tiny",
        context_length=512,
        vocab_size=304,
        eos_ids=(2, 0),
        bos_id=1,
        add_bos=False,
        chat_template="",
        tokenizer_json=json.dumps({"added_tokens": []}),
        embedding_size=64,
        pooling="last",
    )
    assert card_message(card, 16).embedding_size == 64
    variants = [card, replace(card, pooling="mean"), replace(card, embedding_size=0, pooling="")]
    assert len({card_message(each, 16).digest for each in variants}) == 3


def test_a_worker_without_embeddings_rejects_a_run_that_embeds():
    LIMITS.check(SPEC)
    with pytest.raises(EmbeddingUnsupported) as caught:
        replace(LIMITS, embeds=False).check(SPEC)
    assert caught.value.reason == "EMBEDDING_UNSUPPORTED"


@pytest.mark.parametrize("fields", [{"emitted": 1}, {"constraint": AllowedTokens(frozenset({1}))}])
def test_an_embedding_has_no_output(fields):
    with pytest.raises(StartInvalid):
        LIMITS.check(replace(SPEC, **fields))
