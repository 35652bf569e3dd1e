"""Modules in vLLM's place: as much of them as building the engine and our logits processor load."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

from fake_vllm import VOCABULARY, FakeVllm


def install_fake_modules(monkeypatch, *, executor="uni"):
    """Install them until the test ends. `executor`: vLLM's kind of processes, `uni` or `mp`."""
    llm = FakeVllm(blocks=48, block_size=16, slots=4, context=128, token_budget=64, token_ids=range(3, 300))
    llm.engine_core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=llm.scheduler))
    llm.vllm_config = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=128, dtype="torch.float32", get_vocab_size=lambda: VOCABULARY),
        cache_config=SimpleNamespace(block_size=16),
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        parallel_config=SimpleNamespace(distributed_executor_backend=executor),
    )
    contents = {
        "vllm": {"SamplingParams": dict},
        "vllm.engine.arg_utils": {"EngineArgs": dict},
        "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: False)},
        "vllm.sampling_params": {"RequestOutputKind": SimpleNamespace(DELTA="delta")},
        "vllm.v1.engine.llm_engine": {"LLMEngine": SimpleNamespace(from_engine_args=lambda _: llm)},
        "vllm.v1.sample.logits_processor": {
            "LogitsProcessor": object,
            "process_dict_updates": _add_rows,
        },
    }
    for name, values in contents.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "penstock.worker.engine.vllm.logits", raising=False)
    monkeypatch.setattr("penstock.worker.engine.vllm.build._set_environment", lambda _: None)


def _add_rows(rows, added, row):
    made = {index: row(params, prompt, output) for index, params, prompt, output in added}
    rows |= {index: each for index, each in made.items() if each}
