"""Chunked prefill: a very long prompt delays no decode, and uses every token of the budget that decodes leave."""

from dataclasses import dataclass

from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.block_pool import BlockPool
from penstock.worker.engine.batching.policy import ContinuousBatching
from penstock.worker.engine.interface import SequenceSpec
from penstock.worker.engine.simulated.engine import SimulatedEngine
from penstock.worker.engine.simulated.step_time import StepTimeModel

LONG_PROMPT_TOKENS = 50_000
TOKEN_BUDGET = 512
DECODING_SEQS = 16
TOKEN_IDS = range(3, 300)


@dataclass(frozen=True, slots=True)
class LongPromptResult:
    steps: int  # until its first token
    missed_decodes: int  # steps without one of the decodes, summed over all decodes
    steps_over_budget: int  # steps with more tokens than the budget


def simulated_engine(blocks: int, slots: int, context: int, block_size: int = 16) -> SimulatedEngine:
    """Return the batch of every engine, with simulated steps that take no time."""
    batch = Batch(
        pool=BlockPool(blocks, block_size),
        policy=ContinuousBatching(token_budget=TOKEN_BUDGET),
        slots=slots,
        context_length=context,
    )
    return SimulatedEngine(batch, StepTimeModel(), TOKEN_IDS)


def run_long_prompt() -> LongPromptResult:
    engine = simulated_engine(
        blocks=LONG_PROMPT_TOKENS // 8, slots=DECODING_SEQS + 1, context=LONG_PROMPT_TOKENS + 1_000
    )
    for seq_id in range(DECODING_SEQS):
        engine.add(SequenceSpec(seq_id=seq_id, token_ids=[seq_id + 3] * 4, max_output_tokens=600))
    engine.step()
    engine.add(SequenceSpec(seq_id=DECODING_SEQS, token_ids=[7] * LONG_PROMPT_TOKENS, max_output_tokens=1))
    steps = missed = over_budget = 0
    is_waiting = True
    while is_waiting:
        result = engine.step()
        steps += 1
        missed += DECODING_SEQS - len(set(range(DECODING_SEQS)) & set(result.seq_ids))
        over_budget += result.prefill_tokens + result.decode_seqs > TOKEN_BUDGET
        is_waiting = DECODING_SEQS not in result.seq_ids
    return LongPromptResult(steps, missed, over_budget)
