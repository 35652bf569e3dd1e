"""Every engine keeps the contract; the adapter of vLLM with a fake here, and with the real vLLM in tests/service."""

import pytest

from engine_contract import CONTRACT
from engine_subject import Subject
from fake_vllm import engine_on_fake_vllm
from penstock.worker.engine.build import build_engine
from penstock.worker.engine.loaders.cards import folder_card
from penstock.worker.engine.options import EngineOptions
from tiny_model import EOS_ID, write_tiny_model

CONTEXT = 256


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", context=CONTEXT)


def built(kind, folder):
    options = EngineOptions(
        engine=kind, model=str(folder), dtype="float32", device="cpu", kv_blocks=48, slots=4, token_budget=64
    )
    return build_engine(options)


def simulated(folder):
    engine, card = built("sim", folder)
    assert not card.enforces_forms
    return Subject(engine, uses_model_scores=False)


def computed(folder):
    engine, card = built("torch", folder)
    assert card.enforces_forms
    return Subject(engine, eos_ids=(EOS_ID, 0), card=card)


def adapted(folder):
    card = folder_card(folder)
    engine = engine_on_fake_vllm(blocks=48, block_size=16, slots=4, context=CONTEXT, token_budget=64, card=card)
    return Subject(engine, uses_model_scores=False, resumes_draws=False, card=card)


@pytest.mark.parametrize("promise", CONTRACT, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("subject", [simulated, computed, adapted], ids=lambda make: make.__name__)
def test_every_engine_keeps_its_contract(promise, subject, folder):
    promise(subject(folder))
