"""Settings of a worker."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from penstock.chassis.config import ServiceConfig, setting
from penstock.mesh.limits.bounds import MODEL_NAME_CHARS
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


class PoolingKind(StrEnum):
    LAST = "last"
    MEAN = "mean"


class DType(StrEnum):
    AUTO = "auto"  # bfloat16 on GPUs, and on CPUs with bfloat16 arithmetic; float32 otherwise
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerConfig(ServiceConfig):
    """Settings of `PENSTOCK_WORKER_*`."""

    former_names: ClassVar[Mapping[str, str]] = {
        "park_for": "lease_announce_timeout",
        "stream_frames": "max_outbox_frames",
        "stall_after": "engine_stall_timeout",
        "sim_crash_on": "sim_crash_token_id",
        "sim_law": "sim_step_time_file",
    }

    listen: str = setting("127.0.0.1:7005", "Address of the gRPC server.", unit="host:port")
    schedulers: tuple[str, ...] = setting(
        ("127.0.0.1:7004",),
        "Schedulers: host:port or dns:///name:port. The worker attaches to one at a time, in this order.",
    )
    lease_announce_timeout: float = setting(
        1.0, "Longest wait of a START for the announcement of its lease by the scheduler.", unit="s"
    )
    max_outbox_frames: int = setting(
        4_096, "Most unsent frames to one edge. The stream of an edge that does not read is then closed.", unit="frames"
    )
    engine_stall_timeout: float = setting(
        60.0, "Time without a step, while there is work, after which the engine is killed and replaced.", unit="s"
    )

    model: str = setting(
        "SmolLM2-135M-Instruct", "Model: a known name, a Hugging Face folder, a .gguf file or a llama2.c .bin file."
    )
    served_name: str = setting(
        "", "Name under which callers request the model, at most 256 characters. Empty: the model's own name."
    )
    engine: EngineKind = setting(
        EngineKind.TORCH,
        "`torch`: Penstock's own. `vllm`: vLLM. `sim`: real batching, simulated step times and tokens.",
    )
    batching: BatchingKind = setting(BatchingKind.CONTINUOUS, "Batching policy; static batches are a baseline.")
    slots: int = setting(
        64,
        "Sequences that run at one time. More slots than the engine can use hide the queue's order.",
        unit="sequences",
    )
    token_budget: int = setting(512, "Tokens of one step, decodes and prefill chunks together.", unit="tokens")
    block_size: int = setting(16, "Tokens of one KV block.", unit="tokens")
    kv_bytes: int = setting(
        0,
        "Memory of the KV pool. 0: 85 % of the free GPU memory after the model is loaded, or on a CPU a quarter of"
        " the free memory of the container, at most 4 GiB.",
        unit="bytes",
    )
    kv_blocks: int = setting(
        0,
        "Size of the KV pool, in place of `kv_bytes`. 0: from `kv_bytes`; a simulated engine has a default.",
        unit="blocks",
    )
    dtype: DType = setting(
        DType.AUTO, "Number format. `auto`: bfloat16 on GPUs and on CPUs where output stays exact, else float32."
    )
    device: str = setting("auto", "Device as torch names it. `auto`: `cuda` if there is one, else `cpu`.")
    compute: ComputeKind = setting(
        ComputeKind.AUTO,
        "CPU kernels. `native`: C++ compiled for this processor; the start fails without it. `torch`: plain torch."
        " `auto`: native if a compiler or a compiled copy is available.",
    )
    threads: int = setting(0, "Threads of the engine on a CPU. 0: one per core that the process may use.")
    pooling: PoolingKind = setting(
        PoolingKind.LAST,
        "What the embedding of a prompt is made of: the hidden state of its `last` token, or their `mean`. Part of the"
        " version of the model.",
    )
    engine_python: str = setting(
        "", "Python interpreter of the engine process, if the engine needs another environment.", unit="path"
    )
    vllm_args: str = setting("", 'Further vLLM engine arguments as a JSON object, such as {"tensor_parallel_size": 2}.')

    # A simulated step takes the sum of the terms below, or the time that the file gives.
    sim_crash_token_id: int = setting(
        -1, "Token id at which a prompt crashes the simulated engine, for tests. -1: none."
    )
    sim_step_time_file: str = setting(
        "", "Step time model written by `penstock simulate --calibrate --out FILE`.", unit="path"
    )
    sim_base_s: float = setting(StepTimeModel().base_s, "Simulated time of an empty step.", unit="s")
    sim_per_prefill_token_s: float = setting(
        StepTimeModel().per_prefill_token_s, "Simulated time per prefill token.", unit="s"
    )
    sim_per_decode_seq_s: float = setting(
        StepTimeModel().per_decode_seq_s, "Simulated time per decoding sequence.", unit="s"
    )
    sim_per_context_token_s: float = setting(
        StepTimeModel().per_context_token_s, "Simulated time per position that a decode reads.", unit="s"
    )
    sim_per_prefill_context_token_s: float = setting(
        StepTimeModel().per_prefill_context_token_s, "Simulated time per position that a prefill reads.", unit="s"
    )

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        if not self.schedulers:
            raise ValueError("schedulers must name at least one scheduler, which places runs on this worker")
        if len(self.served_name) > MODEL_NAME_CHARS or not self.served_name.isprintable():
            raise ValueError(f"served_name must have at most {MODEL_NAME_CHARS} printable characters")
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
            pooling=self.pooling.value,
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
