"""Measures decode steps of our engine on a GPU: Llama 3.2 1B's shape, random weights, bfloat16, context of 1,024.

For comparison it prints the roofline by the measured rates of the GPU, plain torch on the same weights with --plain,
and transformers' continuous batching if that is installed.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from engine_bench.cells import BenchCell, CellTrace, figures_of
from engine_bench.checkpoints import hf_config
from engine_bench.drivers.ceilings import flop_rate
from engine_bench.drivers.ours import run_cell
from engine_bench.drivers.protocol import DriverSetup
from engine_bench.roofline import cell_work
from penstock.proofs.engine.throughput import best_time_s, roofline_s
from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.block_pool import BlockPool
from penstock.worker.engine.batching.policy import ContinuousBatching
from penstock.worker.engine.interface import SamplingParams
from penstock.worker.engine.torch.engine import TorchEngine, TorchRunner
from penstock.worker.engine.torch.model import Model
from penstock.worker.engine.torch.weights import Layer, ModelShape, Weights, rope_frequencies

RunCell = Callable[[BenchCell], CellTrace]

_LLAMA_1B = ModelShape(
    dim=2048,
    hidden=8192,
    layers=16,
    heads=32,
    kv_heads=8,
    head_size=64,
    vocab_size=128_256,
    context_length=4096,
    norm_eps=1e-5,
)
_ROPE_THETA = 500_000.0
_BLOCK_SIZE = 16
_TOKEN_BUDGET = 8192
_COPY_BYTES = 2 << 30  # larger than any cache
_MATRIX_SIDE = 8192
_REPEATS = 10
_SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, frequency_penalty=0.1, logprobs=True)


class GpuLoad(NamedTuple):
    """Options of the sequences of all cells."""

    sampling: SamplingParams
    first_prompt_tokens: int  # 0: as the others


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrent", help="sequences at once (1,32,256)", default="1,32,256")
    parser.add_argument("--rounds", help="runs of every engine at every cell (%(default)s)", type=int, default=3)
    parser.add_argument("--plain", help="measure plain torch too", action="store_true")
    parser.add_argument("--sampled", help="draw with top-p, a frequency penalty and logprobs", action="store_true")
    parser.add_argument("--long-prompt", help="tokens of the first prompt; 0: as the others", type=int, default=0)
    parsed = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(1, "torch finds no GPU; run this on a machine with a GPU and torch's CUDA build\n")
    cells = [BenchCell(int(count), 960, 128) for count in parsed.concurrent.split(",")]
    load = GpuLoad(_SAMPLED if parsed.sampled else SamplingParams(), parsed.long_prompt)
    _measure(cells, parsed.rounds, load, plain=parsed.plain)


@torch.inference_mode()
def _measure(cells: list[BenchCell], rounds: int, load: GpuLoad, *, plain: bool) -> None:
    device = torch.device("cuda")
    rates = {"bytes_per_s": _copy_bandwidth(device), "flops_per_s": flop_rate(torch.bfloat16, _MATRIX_SIDE, "cuda")}
    print(torch.cuda.get_device_name(device), *(f"{name} {rate:.3g}" for name, rate in rates.items()))
    for name, run in _engines(cells, device, load, plain=plain):
        for cell in cells:
            run(cell)  # compiles, and fills caches
            steps = [figures_of(cell, run(cell), cpu_wait_share=0.0).step_ms for _ in range(rounds)]
            least = 1000 * roofline_s(cell_work(_LLAMA_1B, "bfloat16", cell), **rates)
            took = f"{median(steps):7.3f} ms a step ({min(steps):.3f} to {max(steps):.3f})"
            print(f"{name:12} {cell.concurrency:4}  {took}, {least / median(steps):.0%} of the roofline's {least:.3f}")


def _engines(
    cells: list[BenchCell], device: torch.device, load: GpuLoad, *, plain: bool
) -> Iterator[tuple[str, RunCell]]:
    from penstock.worker.engine.cuda.runner import CudaRunner  # noqa: PLC0415 - needs Triton
    from penstock.worker.engine.cuda.sampler import CudaSampler  # noqa: PLC0415 - needs Triton

    slots = max(cell.concurrency for cell in cells)
    longest = max(cell.prompt_tokens + cell.output_tokens for cell in cells)
    blocks = slots * (-(-longest // _BLOCK_SIZE) + 1) + -(-load.first_prompt_tokens // _BLOCK_SIZE)
    shape = replace(_LLAMA_1B, context_length=max(_LLAMA_1B.context_length, load.first_prompt_tokens + longest))
    weights = random_weights(shape, device)
    runner = CudaRunner(shape, weights, blocks, _BLOCK_SIZE, slots)
    sampler = CudaSampler(slots, shape.vocab_size, device)
    yield "penstock", run_cell_with(TorchEngine(runner, _batch(shape, blocks, slots), sampler.sample), shape, load)
    if plain:
        plain_runner = TorchRunner(Model(shape, weights), blocks, _BLOCK_SIZE)
        yield "plain torch", run_cell_with(TorchEngine(plain_runner, _batch(shape, blocks, slots)), shape, load)
    if find_spec("transformers"):
        yield "transformers", _transformers(cells, device, slots)


def run_cell_with(engine: TorchEngine, shape: ModelShape, load: GpuLoad) -> RunCell:
    return lambda cell: run_cell(
        engine, cell, shape.vocab_size, sampling=load.sampling, first_prompt_tokens=load.first_prompt_tokens
    )


def _batch(shape: ModelShape, blocks: int, slots: int) -> Batch:
    return Batch(
        pool=BlockPool(blocks, _BLOCK_SIZE),
        policy=ContinuousBatching(token_budget=_TOKEN_BUDGET),
        slots=slots,
        context_length=shape.context_length,
    )


def _transformers(cells: list[BenchCell], device: torch.device, slots: int) -> RunCell:
    from transformers import AutoModelForCausalLM, LlamaConfig  # noqa: PLC0415 - optional

    from engine_bench.drivers.transformers_batching import start_batching  # noqa: PLC0415 - optional

    config = LlamaConfig(**hf_config(_LLAMA_1B, tied=True, rope_theta=_ROPE_THETA))
    with torch.inference_mode(mode=False), device:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    context = max(cell.prompt_tokens + cell.output_tokens for cell in cells)
    return start_batching(model, DriverSetup("", "bfloat16", 1, slots, context), _LLAMA_1B.vocab_size)


def random_weights(shape: ModelShape, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Weights:
    """Return matrices with a standard deviation of 0.02 and norms of 1; the head is the embedding."""
    generator = torch.Generator(device).manual_seed(0)

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.empty(rows, columns, dtype=dtype, device=device).normal_(0, 0.02, generator=generator)

    q, kv, ones = shape.heads * shape.head_size, shape.kv_heads * shape.head_size, torch.ones(shape.dim, device=device)
    embedding = matrix(shape.vocab_size, shape.dim)
    layers = [
        Layer(
            attention_norm=ones,
            qkv=matrix(q + 2 * kv, shape.dim),
            qkv_bias=None,
            q_norm=None,
            k_norm=None,
            out=matrix(shape.dim, q),
            mlp_norm=ones,
            gate_up=matrix(2 * shape.hidden, shape.dim),
            down=matrix(shape.dim, shape.hidden),
        )
        for _ in range(shape.layers)
    ]
    frequencies = rope_frequencies(shape.head_size, _ROPE_THETA)
    return Weights(embedding=embedding, layers=layers, norm=ones, head=embedding, inverse_frequencies=frequencies)


def _copy_bandwidth(device: torch.device) -> float:
    """Return bytes/s, read and written together, of a copy."""
    source = torch.zeros(_COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * _COPY_BYTES / best_time_s(lambda: target.copy_(source), _REPEATS)


if __name__ == "__main__":
    main()
