"""Settings of a worker: PENSTOCK_WORKER_<FIELD>."""

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from penstock.chassis.config import ServiceConfig
from penstock.worker.engine.options import EngineOptions
from penstock.worker.engine.simulated.step_time import StepTimeModel, read_step_time_model


class EngineKind(StrEnum):
    TORCH = "torch"  # Penstock's own engine, on a CPU or a GPU
    VLLM = "vllm"  # for models and hardware that Penstock's engine does not run; resumes sampled texts less exactly
    SIM = "sim"  # simulated: takes the time of a step and makes up the tokens


class BatchingKind(StrEnum):
    CONTINUOUS = "continuous"
    STATIC = "static"  # a baseline for measurements


class ComputeKind(StrEnum):
    AUTO = "auto"
    NATIVE = "native"  # Penstock's C++ code, built for the type of processor; the start fails if it cannot be built
    TORCH = "torch"


class DType(StrEnum):
    AUTO = "auto"  # bfloat16 on GPUs, and on CPUs with bfloat16 arithmetic; float32 otherwise
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerConfig(ServiceConfig):
    listen: str = "127.0.0.1:7005"
    schedulers: tuple[str, ...] = ("127.0.0.1:7004",)  # host:port or dns:///name:port; one at a time, in this order
    lease_announce_timeout: float = (
        1.0  # s that a START waits for its lease's announcement: the two come by different ways
    )
    max_outbox_frames: int = 4_096  # frames waiting for one edge; beyond them its stream is closed, as it does not read

    engine_stall_timeout: float = (
        60.0  # s without a step while there is work: the engine hangs, and is killed and replaced
    )

    model: str = "SmolLM2-135M-Instruct"  # a known name, a Hugging Face folder, a .gguf or a .bin file
    engine: EngineKind = EngineKind.TORCH
    batching: BatchingKind = BatchingKind.CONTINUOUS
    slots: int = 64  # sequences that run at once; with many more, a line forms in the engine, where no policy orders it
    token_budget: int = 512  # tokens of one step, decodes and prefill chunks together
    block_size: int = 16  # tokens per KV block
    # Memory of the KV pool; 0: 85 % of what a GPU has free once the model is loaded, or a quarter of what a CPU has
    # free inside its container, 4 GiB at most.
    kv_bytes: int = 0
    kv_blocks: int = 0  # the pool in blocks, whatever their bytes; 0: from kv_bytes, or as a simulated engine chooses
    dtype: DType = DType.AUTO
    device: str = "auto"  # as torch names it; auto: cuda where there is one
    compute: ComputeKind = ComputeKind.AUTO  # on a CPU; auto: native where it can be had
    threads: int = 0  # on a CPU; 0: one for each core that the process may use
    engine_python: str = ""  # interpreter of the engine's process, where it needs an environment of its own
    vllm_args: str = ""  # JSON object: more of vLLM's engine arguments, such as {"tensor_parallel_size": 2}

    # Of a simulated engine: a step takes the sum of the terms below, or what the file says instead.
    sim_crash_token_id: int = (
        -1
    )  # a token at which prompts crash the engine, to see what becomes of such a request; -1: none
    sim_step_time_file: str = ""  # written by `penstock simulate --calibrate --out FILE`
    sim_base_s: float = StepTimeModel().base_s
    sim_per_prefill_token_s: float = StepTimeModel().per_prefill_token_s
    sim_per_decode_seq_s: float = StepTimeModel().per_decode_seq_s
    sim_per_context_token_s: float = StepTimeModel().per_context_token_s  # for each position that a decode reads
    sim_per_prefill_context_token_s: float = (
        StepTimeModel().per_prefill_context_token_s
    )  # for each that a prefill reads

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        if not self.schedulers:
            raise ValueError("schedulers must name at least one scheduler, which places runs on this worker")
        for name in ("slots", "token_budget", "block_size", "max_outbox_frames"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.vllm_args and not isinstance(_parse_json(self.vllm_args), dict):
            raise ValueError('vllm_args must be a JSON object, such as {"enforce_eager": true}')
        self._step_time_model()  # an invalid file stops the start
        if self.engine_stall_timeout <= 0:
            raise ValueError("engine_stall_timeout must be above 0")
        for name in ("lease_announce_timeout", "kv_bytes", "kv_blocks", "threads"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")

    def engine_options(self) -> EngineOptions:
        return EngineOptions(
            engine=self.engine.value,
            model=self.model,
            dtype=self.dtype.value,
            compute=self.compute.value,
            device=self.device,
            kv_bytes=self.kv_bytes,
            kv_blocks=self.kv_blocks,
            block_size=self.block_size,
            slots=self.slots,
            token_budget=self.token_budget,
            batching=self.batching.value,
            threads=self.threads,
            vllm_args=self.vllm_args,
            step_time=self._step_time_model(),
            crash_token_id=self.sim_crash_token_id,
        )

    def _step_time_model(self) -> StepTimeModel:
        if self.sim_step_time_file:
            return read_step_time_model(Path(self.sim_step_time_file))
        return StepTimeModel(
            base_s=self.sim_base_s,
            per_prefill_token_s=self.sim_per_prefill_token_s,
            per_decode_seq_s=self.sim_per_decode_seq_s,
            per_context_token_s=self.sim_per_context_token_s,
            per_prefill_context_token_s=self.sim_per_prefill_context_token_s,
        )


def _parse_json(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None
