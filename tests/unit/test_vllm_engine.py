"""The adapter of vLLM beyond the contract: its translation and its errors."""

import json
import sys

import pytest

from fake_vllm import VOCABULARY, engine_on_fake_vllm
from penstock.worker.config import EngineKind, WorkerConfig
from penstock.worker.engine.batching.errors import StartInvalid
from penstock.worker.engine.build import build_engine
from penstock.worker.engine.interface import AllowedChoices, AllowedTokens, SamplingParams, SequenceSpec
from penstock.worker.engine.loaders import ModelUnsupported
from penstock.worker.engine.options import EngineOptions
from penstock.worker.engine.vllm.build import VllmMissing, engine_arguments
from penstock.worker.engine.vllm.params import EXTRA_ARGS_KEY, sampling_fields
from tiny_model import write_tiny_model

DRAWN = SamplingParams(temperature=0.7)


def spec(**fields):
    return SequenceSpec(**{"seq_id": 1, "token_ids": [5, 6, 7, 8, 9], "max_output_tokens": 4} | fields)


def fields_of(**fields):
    return sampling_fields(spec(**fields), frozenset({2, 0}))


def test_the_models_end_ids_count_beside_the_callers_unless_ignored():
    assert fields_of(stop_ids=frozenset({7}))["stop_token_ids"] == [0, 2, 7]
    assert fields_of(stop_ids=frozenset({7}), ignore_eos=True)["stop_token_ids"] == [7]


def test_a_resumed_run_draws_from_a_seed_of_its_own_and_a_first_one_from_its_callers():
    assert fields_of(sampling=DRAWN, seed=9)["seed"] == 9
    seeds = {fields_of(sampling=DRAWN, seed=9, emitted=emitted)["seed"] for emitted in range(4)}
    assert len(seeds) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert "seed" not in fields_of(seed=9)  # greedy: vLLM is quicker without a generator for each row


def test_our_logits_processor_is_used_only_for_features_that_vllm_lacks():
    penalised = SamplingParams(presence_penalty=1.0, frequency_penalty=0.5)
    assert "extra_args" not in fields_of(sampling=penalised)
    assert "extra_args" not in fields_of(emitted=2)
    resumed = fields_of(sampling=penalised, emitted=2)
    assert (resumed["presence_penalty"], resumed["frequency_penalty"]) == (0.0, 0.0)  # never counted twice
    assert resumed["extra_args"][EXTRA_ARGS_KEY][:3] == (2, 1.0, 0.5)
    assert fields_of(constraint=AllowedChoices(((4, 5),)))["extra_args"][EXTRA_ARGS_KEY].constraint == AllowedChoices(
        ((4, 5),)
    )
    allowed = fields_of(constraint=AllowedTokens(frozenset({9, 4})))
    assert (allowed["allowed_token_ids"], "extra_args" in allowed) == ([0, 2, 4, 9], False)


def test_a_request_that_vllm_rejects_is_an_error_of_the_caller_and_leaves_no_state():
    engine = engine_on_fake_vllm()
    with pytest.raises(StartInvalid, match="vLLM rejects the request: token_id"):
        engine.add(spec(sampling=SamplingParams(logit_bias=((VOCABULARY, 1.0),))))
    assert not engine.has_work
    engine.add(spec())
    assert engine.has_work


def test_an_unexpected_end_is_an_error(monkeypatch):
    engine = engine_on_fake_vllm()
    engine.add(spec())
    step = engine._llm.step

    def failing():
        [output] = step()
        output.finished, output.outputs[0].finish_reason = True, "error"
        return [output]

    monkeypatch.setattr(engine._llm, "step", failing)
    with pytest.raises(RuntimeError, match="vLLM ended sequence 1 by 'error'"):
        engine.step()


def test_a_step_of_receipts_alone_does_not_step_vllm():
    engine = engine_on_fake_vllm()
    engine.add(spec())
    engine.step()
    engine.cancel(1)
    assert engine.step().cancelled[0][:2] == (1, 1)
    assert engine._llm.steps == 1


def test_preemptions_are_reported():
    engine = engine_on_fake_vllm(blocks=8, block_size=4, slots=4)
    for seq_id in range(3):
        engine.add(spec(seq_id=seq_id, token_ids=[seq_id + 5] * 4, max_output_tokens=16, ignore_eos=True))
    preempted, tokens = 0, 0
    while engine.has_work:
        result = engine.step()
        preempted += len(result.preempted)
        tokens += len(result.tokens)
    assert preempted > 0
    assert tokens == 48
    assert engine.capacity().blocks_free == 8


def test_arguments_of_the_operator_take_precedence():
    options = EngineOptions(model="m", kv_blocks=99, slots=8, token_budget=4, vllm_args=json.dumps({"seed": 5, "x": 1}))
    arguments = engine_arguments(options)
    assert (arguments["num_gpu_blocks_override"], arguments["max_num_batched_tokens"]) == (100, 8)
    assert (arguments["seed"], arguments["x"]) == (5, 1)


@pytest.mark.parametrize("text", ["{", "[1]", '"x"'])
def test_arguments_that_are_no_json_object_stop_the_start(text):
    with pytest.raises(ValueError, match="vllm_args must be a JSON object"):
        WorkerConfig(engine=EngineKind.VLLM, vllm_args=text)


def test_a_model_that_is_no_folder_is_rejected_by_name():
    with pytest.raises(ModelUnsupported, match="vLLM runs Hugging Face folders, which SmolLM2-135M-Instruct is not"):
        build_engine(EngineOptions(engine="vllm"))


def test_without_vllm_the_error_names_the_package_to_install(tmp_path, monkeypatch):
    folder = write_tiny_model(tmp_path / "tiny")
    monkeypatch.setitem(sys.modules, "vllm", None)  # as if it were not installed
    with pytest.raises(VllmMissing, match=r"pip install vllm.*PENSTOCK_WORKER_ENGINE_PYTHON"):
        build_engine(EngineOptions(engine="vllm", model=str(folder)))
