"""Builds the batch of every engine that uses our KV pool."""

from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.block_pool import BlockPool
from penstock.worker.engine.batching.policy import BatchingPolicy, ContinuousBatching, StaticBatching
from penstock.worker.engine.model_card import ModelCard
from penstock.worker.engine.options import EngineOptions


def build_batch(options: EngineOptions, card: ModelCard, blocks: int) -> Batch:
    policy: BatchingPolicy = (
        StaticBatching() if options.batching == "static" else ContinuousBatching(token_budget=options.token_budget)
    )
    return Batch(
        pool=BlockPool(blocks, options.block_size),
        policy=policy,
        slots=options.slots,
        context_length=card.context_length,
        eos_ids=frozenset(card.eos_ids),
    )
