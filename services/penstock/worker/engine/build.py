"""The composition root of the engine process: builds the engine that the options name, and loads only its libraries."""

from penstock.worker.engine.batching.build import build_batch
from penstock.worker.engine.interface import Engine
from penstock.worker.engine.loaders import load_card, locate_model
from penstock.worker.engine.loaders.weights_digest import identified
from penstock.worker.engine.machine.memory import fit_context
from penstock.worker.engine.model_card import ModelCard
from penstock.worker.engine.options import EngineOptions
from penstock.worker.engine.simulated.engine import SimulatedEngine

SIMULATED_KV_BLOCKS = 7_500  # 120,000 tokens in blocks of 16


def build_engine(options: EngineOptions) -> tuple[Engine, ModelCard]:
    """Load the model and build its engine. Raises ModelUnsupported, or ValueError for options that cannot work."""
    if options.engine == "sim":
        card = identified(load_card(options.model), locate_model(options.model)[0], engine="sim")
        blocks = options.kv_blocks or SIMULATED_KV_BLOCKS
        card = fit_context(card, blocks, options.block_size)
        batch = build_batch(options, card, blocks)
        engine = SimulatedEngine(
            batch, options.step_time, card.plain_ids(), options.crash_token_id, salt=bytes.fromhex(card.weights_digest)
        )
        return engine, card
    if options.engine == "vllm":
        from penstock.worker.engine.vllm.build import build_vllm_engine  # noqa: PLC0415 - loads vLLM

        return build_vllm_engine(options)
    from penstock.worker.engine.torch.build import build_torch_engine  # noqa: PLC0415 - torch takes 1 s and 400 MB

    return build_torch_engine(options)
