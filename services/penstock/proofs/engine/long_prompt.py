"""The chunk rule: a very long prompt holds up nobody who decodes, and gets every token that they leave."""

from dataclasses import dataclass

from penstock.worker.engine.batch import Batch
from penstock.worker.engine.batching import ContinuousBatching
from penstock.worker.engine.blocks import BlockPool
from penstock.worker.engine.interface import SequenceSpec
from penstock.worker.engine.sim import SimulatedEngine
from penstock.worker.engine.step_law import StepTimeModel

LONG = 50_000  # tokens
BUDGET = 512
DECODES = 16
IDS = range(3, 300)


@dataclass(frozen=True, slots=True)
class LongPrompt:
    steps: int  # until its first token
    missed: int  # steps that a decode was not in, over all decodes
    over_budget: int  # steps of more tokens than the budget


def simulated(blocks: int, slots: int, context: int, block_size: int = 16) -> SimulatedEngine:
    """The very batch of every engine, over a law that nobody waits for."""
    batch = Batch(
        pool=BlockPool(blocks, block_size),
        policy=ContinuousBatching(token_budget=BUDGET),
        slots=slots,
        context_length=context,
    )
    return SimulatedEngine(batch, StepTimeModel(), IDS)


def long_prompt() -> LongPrompt:
    engine = simulated(blocks=LONG // 8, slots=DECODES + 1, context=LONG + 1_000)
    for seq_id in range(DECODES):
        engine.add(SequenceSpec(seq_id=seq_id, token_ids=[seq_id + 3] * 4, max_output_tokens=600))
    engine.step()
    engine.add(SequenceSpec(seq_id=DECODES, token_ids=[7] * LONG, max_output_tokens=1))
    steps = missed = over_budget = 0
    is_waiting = True
    while is_waiting:
        result = engine.step()
        steps += 1
        missed += DECODES - len(set(range(DECODES)) & set(result.seq_ids))
        over_budget += result.prefill_tokens + result.decode_seqs > BUDGET
        is_waiting = DECODES not in result.seq_ids
    return LongPrompt(steps, missed, over_budget)
