"""Options of an engine process, which the worker sends once, at its start."""

from dataclasses import dataclass, field
from typing import Literal

from penstock.worker.engine.simulated.step_time import StepTimeModel


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    engine: Literal["torch", "sim", "vllm"] = "torch"
    model: str = "SmolLM2-135M-Instruct"  # known name, folder, .gguf or .bin file; a simulated engine uses its card
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 if the device has arithmetic for it
    compute: Literal["auto", "native", "torch"] = "auto"  # auto: native code or, on a GPU, our kernels, if available
    device: str = "auto"  # torch device; auto: cuda if there is one
    kv_bytes: int = 0  # bytes of the KV pool; 0: a share of the memory that is free after loading (`machine.memory`)
    kv_blocks: int = 0  # blocks of the pool, before kv_bytes; 0: from kv_bytes, simulated `SIMULATED_KV_BLOCKS`
    block_size: int = 16  # tokens per block; 16 to 128 measured alike
    slots: int = 32  # sequences that run at once
    token_budget: int = 512  # tokens per step
    batching: Literal["continuous", "static"] = "continuous"
    threads: int = 0  # on a CPU; 0: one per core that the process may use
    pooling: Literal["last", "mean"] = "last"  # of embeddings
    vllm_args: str = ""  # JSON object of further arguments for vllm.EngineArgs
    step_time: StepTimeModel = field(default_factory=StepTimeModel)  # of a simulated engine
    crash_token_id: int = -1  # token of a prompt that crashes a simulated engine; -1: none
