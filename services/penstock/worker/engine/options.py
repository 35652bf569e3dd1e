"""What an engine process is told once, at its start."""

from dataclasses import dataclass, field
from typing import Literal

from penstock.worker.engine.simulated.step_time import StepTimeModel


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    engine: Literal["torch", "sim", "vllm"] = "torch"
    model: str = "SmolLM2-135M-Instruct"  # known name, folder, .gguf or .bin file; a simulated engine takes its card
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 where the device has arithmetic for it
    compute: Literal["auto", "native", "torch"] = "auto"  # auto: native, on a GPU our kernels, where it can be had
    device: str = "auto"  # as torch names it; auto: cuda where there is one
    kv_bytes: int = 0  # memory of the KV pool; 0: a share of what is free once the model is loaded, as `memory` says
    kv_blocks: int = (
        0  # size of the pool in blocks, whatever their bytes; 0: from kv_bytes, simulated from `SIM_BLOCKS`
    )
    block_size: int = 16  # tokens; blocks of 16 to 128 measured alike
    slots: int = 32  # sequences that run at once
    token_budget: int = 512  # tokens per step
    batching: Literal["continuous", "static"] = "continuous"
    threads: int = 0  # on a CPU; 0: one for each core that the process may use
    vllm_args: str = ""  # JSON object: more arguments for vllm.EngineArgs
    step_time: StepTimeModel = field(default_factory=StepTimeModel)  # of a simulated engine
    crash_token_id: int = -1  # a token of prompts at which a simulated engine dies; -1: none
