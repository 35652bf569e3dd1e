"""A worker serves its model under another name."""

from dataclasses import replace

import pytest

from penstock.worker.config import WorkerConfig
from penstock.worker.engine.interface import Capacity
from penstock.worker.engine.model_card import ModelCard
from penstock.worker.engine_host.state import EngineState

CARD = ModelCard(
    name="weights-v2",
    context_length=512,
    vocab_size=304,
    eos_ids=(1,),
    bos_id=None,
    add_bos=False,
    chat_template="",
    tokenizer_json="{}",
)
CAPACITY = Capacity(
    slots=8,
    slots_free=8,
    blocks=100,
    blocks_free=100,
    blocks_cached=0,
    blocks_promised=0,
    block_size=16,
    waiting=0,
    running=0,
    prefill_backlog_tokens=0,
)


@pytest.mark.parametrize(("served_name", "name"), [("", "weights-v2"), ("chat", "chat")])
def test_the_card_has_the_served_name_and_the_digest_of_that_name(served_name, name):
    state = EngineState(served_name)
    state.on_ready(CARD, CAPACITY)
    assert state.card.name == name
    assert state.model == f"{name}@{replace(CARD, name=name).digest(16)}" == state.limits.model


def test_a_served_name_is_bounded():
    assert WorkerConfig(served_name="gpt 4o: 7b/q8").served_name == "gpt 4o: 7b/q8"
    for name in ("x" * 257, "a\nb"):
        with pytest.raises(ValueError, match="at most 256 printable characters"):
            WorkerConfig(served_name=name)
