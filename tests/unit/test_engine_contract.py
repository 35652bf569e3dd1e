"""Every engine keeps the contract; the adapter of vLLM with a fake here, and with the real vLLM in tests/service."""

import pytest

from engine_contract import CONTRACT, Subject
from fake_vllm import engine_on_fake_vllm
from penstock.worker.engine.build import build_engine
from penstock.worker.engine.options import EngineOptions
from tiny_model import EOS_ID, write_tiny_model

CONTEXT = 96


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", context=CONTEXT)


def built(kind, folder):
    options = EngineOptions(
        engine=kind, model=str(folder), dtype="float32", device="cpu", kv_blocks=48, slots=4, token_budget=64
    )
    return build_engine(options)[0]


def simulated(folder):
    return Subject(built("sim", folder), uses_model_scores=False)


def computed(folder):
    return Subject(built("torch", folder), eos_ids=(EOS_ID, 0))


def adapted(_):
    engine = engine_on_fake_vllm(blocks=48, block_size=16, slots=4, context=CONTEXT, token_budget=64)
    return Subject(engine, uses_model_scores=False, resumes_draws=False)


@pytest.mark.parametrize("promise", CONTRACT, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("subject", [simulated, computed, adapted], ids=lambda make: make.__name__)
def test_every_engine_keeps_its_contract(promise, subject, folder):
    promise(subject(folder))
