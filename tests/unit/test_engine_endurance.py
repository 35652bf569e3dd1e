"""Engines under overload, and long prompts beside short ones.

The full size is run by hand, and prints the outcome:
`ENGINE_REQUESTS=10000 ENGINE_LONG_PROMPT=50000 python -m pytest tests/unit/test_engine_endurance.py -s`
"""

import gc
import os
import tracemalloc

import psutil
import pytest

from engine_stress import BLOCK_SIZE, CONTEXT_LENGTH, KV_BLOCKS, SLOTS, EngineStress
from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.block_pool import BlockPool
from penstock.worker.engine.batching.policy import ContinuousBatching
from penstock.worker.engine.build import build_engine
from penstock.worker.engine.interface import SequenceSpec
from penstock.worker.engine.options import EngineOptions
from penstock.worker.engine.simulated.engine import SimulatedEngine
from penstock.worker.engine.simulated.step_time import StepTimeModel
from tiny_model import write_tiny_model

TORCH_REQUESTS = int(os.environ.get("ENGINE_REQUESTS", "1000"))


def batch_of(*, blocks=KV_BLOCKS, block_size=BLOCK_SIZE, slots=SLOTS, budget=128, context=CONTEXT_LENGTH):
    return Batch(
        pool=BlockPool(blocks, block_size),
        policy=ContinuousBatching(token_budget=budget),
        slots=slots,
        context_length=context,
    )


def torch_engine(folder, *, context=CONTEXT_LENGTH, blocks=KV_BLOCKS, block_size=BLOCK_SIZE, budget=128, **shape):
    options = EngineOptions(
        model=str(write_tiny_model(folder / "tiny", context=context, **shape)),
        dtype="float32",
        device="cpu",
        threads=1,  # the steps of a tiny model are too short to share
        kv_blocks=blocks,
        block_size=block_size,
        slots=SLOTS,
        token_budget=budget,
    )
    return build_engine(options)[0]


def test_ten_thousand_sequences_run_in_a_pool_four_times_too_small_in_constant_memory():
    stress = EngineStress(SimulatedEngine(batch_of(), StepTimeModel(), range(3, 300)), 10_000)
    stress.run(until=1_000)
    tracemalloc.start()
    stress.run(until=2_000)
    gc.collect()
    warm = tracemalloc.get_traced_memory()[0]
    stress.run()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - warm
    tracemalloc.stop()
    assert grown < 100_000  # bytes: a dozen for each request
    assert stress.counts["different"] == 0
    stress.check_end()


def test_many_sequences_run_in_a_real_engine_in_constant_memory(tmp_path):
    stress = EngineStress(torch_engine(tmp_path), TORCH_REQUESTS)
    stress.run(until=TORCH_REQUESTS // 4)
    gc.collect()
    warm = psutil.Process().memory_info().rss
    stress.run()
    gc.collect()
    grown = psutil.Process().memory_info().rss - warm
    print(f"{dict(stress.counts)}, {grown / 2**20:.1f} MiB more than after a quarter")  # noqa: T201 - for runs by hand
    assert grown < 32 << 20
    # One text in a thousand may differ where two scores are nearly equal: other chunk sizes round differently.
    assert stress.counts["different"] <= TORCH_REQUESTS / 1000
    stress.check_end()


def long_and_short(engine, *, long, budget, decodes=16):
    """Decode `decodes` sequences beside a prompt of `long` tokens, without a missed step; return its prefill steps."""
    for seq_id in range(decodes):
        engine.add(SequenceSpec(seq_id=seq_id, token_ids=[seq_id + 3] * 4, max_output_tokens=600, ignore_eos=True))
    engine.step()
    engine.add(SequenceSpec(seq_id=99, token_ids=[7] * long, max_output_tokens=1, ignore_eos=True))
    steps = 0
    while True:
        result = engine.step()
        steps += 1
        assert set(range(decodes)) <= set(result.seq_ids)
        assert result.decode_seqs == decodes
        assert result.prefill_tokens + result.decode_seqs <= budget
        if 99 in result.seq_ids:
            return steps


def test_no_decode_misses_a_step_beside_a_prompt_of_fifty_thousand_tokens():
    batch = batch_of(blocks=4_000, block_size=16, budget=512, context=51_200)
    assert long_and_short(SimulatedEngine(batch, StepTimeModel(), range(3, 300)), long=50_000, budget=512) == -(
        -50_000 // 496
    )


def test_no_decode_misses_a_step_of_a_real_engine_beside_a_long_prompt(tmp_path):
    long = int(os.environ.get("ENGINE_LONG_PROMPT", "20000"))
    tiny = {"dim": 32, "layers": 1, "heads": 2, "kv_heads": 1}
    engine = torch_engine(tmp_path, context=51_200, blocks=4_000, block_size=16, budget=512, **tiny)
    assert long_and_short(engine, long=long, budget=512) == -(-long // 496)


@pytest.mark.parametrize("decodes", [0, 16])
def test_a_short_prompt_beside_two_of_fifty_thousand_tokens_has_its_first_token_in_the_next_step(decodes):
    batch = batch_of(blocks=8_000, block_size=16, budget=512, context=51_200)
    engine = SimulatedEngine(batch, StepTimeModel(), range(3, 300))
    for seq_id in range(decodes):
        engine.add(SequenceSpec(seq_id=seq_id, token_ids=[3] * 4, max_output_tokens=600))
    for seq_id in (97, 98):
        engine.add(SequenceSpec(seq_id=seq_id, token_ids=[7] * 50_000, max_output_tokens=1))
    engine.step()
    engine.add(SequenceSpec(seq_id=99, token_ids=[7] * 300, max_output_tokens=1))
    assert 99 in engine.step().seq_ids


def test_two_long_prompts_complete_in_bounded_steps_under_a_stream_of_short_ones():
    """The oldest has a quarter of each step's budget, so 50,000 tokens take 391 steps of 512 at most, twice."""
    batch = batch_of(blocks=8_000, block_size=16, budget=512, context=51_200)
    engine = SimulatedEngine(batch, StepTimeModel(), range(3, 300))
    for seq_id in (1, 2):
        engine.add(SequenceSpec(seq_id=seq_id, token_ids=[7] * 50_000, max_output_tokens=1))
    ended, steps = {}, 0
    while len(ended) < 2:
        steps += 1
        engine.add(SequenceSpec(seq_id=100 + steps, token_ids=[7] * 500, max_output_tokens=1))
        ended |= {each: steps for each in engine.step().seq_ids if each < 100}
        assert steps <= 2 * 391
    assert ended[1] <= 391
