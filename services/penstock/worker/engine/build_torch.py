"""From options to the engine that computes. Whoever imports this loads torch."""

import torch

from penstock.worker.engine.build import batch_of
from penstock.worker.engine.card import ModelCard
from penstock.worker.engine.kv import blocks_for
from penstock.worker.engine.loaders import load
from penstock.worker.engine.memory import cpu_pool_bytes, fit_context, gpu_pool_bytes
from penstock.worker.engine.options import EngineOptions
from penstock.worker.engine.torch_engine import TorchEngine


def build_torch_engine(options: EngineOptions) -> tuple[TorchEngine, ModelCard]:
    if options.threads:
        torch.set_num_threads(options.threads)
    device = _device(options.device)
    dtype = _dtype(options.dtype, device)
    model, card = load(options.model, dtype, device)
    blocks = options.kv_blocks or blocks_for(
        options.kv_bytes or _pool_bytes(device), model.shape, options.block_size, dtype
    )
    card = fit_context(card, blocks, options.block_size)
    return TorchEngine(model, batch_of(options, card, blocks)), card


def _pool_bytes(device: torch.device) -> int:
    """Asked once the weights are loaded, so that what is free is what they leave."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return gpu_pool_bytes(free)
    return cpu_pool_bytes()


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def _dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is float32 on a CPU: bfloat16 is faster there, but rounds differently in batches of different sizes.

    Then a text that goes on elsewhere after a fault could leave its path where two tokens all but tie.
    """
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" else "float32"
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
