"""From options to the batch that every engine with a KV pool of ours runs."""

from penstock.worker.engine.batch import Batch
from penstock.worker.engine.batching import Batching, Continuous, Naive
from penstock.worker.engine.blocks import BlockPool
from penstock.worker.engine.card import ModelCard
from penstock.worker.engine.options import EngineOptions


def batch_of(options: EngineOptions, card: ModelCard, blocks: int) -> Batch:
    batching: Batching = Naive() if options.batching == "naive" else Continuous(token_budget=options.token_budget)
    return Batch(
        pool=BlockPool(blocks, options.block_size),
        batching=batching,
        slots=options.slots,
        context_length=card.context_length,
        eos_ids=frozenset(card.eos_ids),
    )
