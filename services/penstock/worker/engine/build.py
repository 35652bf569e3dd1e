"""From options to an engine: the object graph of the engine process."""

import torch

from penstock.worker.engine.batch import Batch
from penstock.worker.engine.batching import Batching, Continuous, Naive
from penstock.worker.engine.blocks import BlockPool
from penstock.worker.engine.card import ModelCard
from penstock.worker.engine.interface import Engine
from penstock.worker.engine.kv import blocks_for
from penstock.worker.engine.loaders import load, load_card
from penstock.worker.engine.options import EngineOptions
from penstock.worker.engine.sim import SimEngine
from penstock.worker.engine.torch_engine import TorchEngine

SIM_BLOCKS = 7_500  # 120,000 tokens in blocks of 16


def build_engine(options: EngineOptions) -> tuple[Engine, ModelCard]:
    """Load the model and make its engine. Raises ModelUnsupported or ValueError over options that cannot work."""
    if options.engine == "sim":
        card = load_card(options.model)
        batch = _batch(options, card, options.kv_blocks or SIM_BLOCKS)
        return SimEngine(batch, options.law, card.plain_ids()), card
    if options.threads:
        torch.set_num_threads(options.threads)
    device = _device(options.device)
    dtype = _dtype(options.dtype, device)
    model, card = load(options.model, dtype, device)
    blocks = options.kv_blocks or blocks_for(options.kv_bytes, model.shape, options.block_size, dtype)
    return TorchEngine(model, _batch(options, card, blocks)), card


def _batch(options: EngineOptions, card: ModelCard, blocks: int) -> Batch:
    batching: Batching = Naive() if options.batching == "naive" else Continuous(token_budget=options.token_budget)
    return Batch(
        pool=BlockPool(blocks, options.block_size),
        batching=batching,
        slots=options.slots,
        context_length=card.context_length,
        eos_ids=frozenset(card.eos_ids),
    )


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
