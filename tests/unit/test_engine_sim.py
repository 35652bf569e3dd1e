import subprocess
import sys
from random import Random

import pytest

from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.block_pool import BlockPool
from penstock.worker.engine.batching.errors import PromptTooLong
from penstock.worker.engine.batching.policy import ContinuousBatching, StaticBatching
from penstock.worker.engine.interface import SequenceSpec
from penstock.worker.engine.simulated.engine import SimulatedEngine
from penstock.worker.engine.simulated.step_time import StepTimeModel
from tiny_gguf import write_gguf
from tiny_model import write_tiny_model

STEP_TIME = StepTimeModel(base_s=1.0, per_prefill_token_s=0.1, per_decode_seq_s=0.01, per_context_token_s=0.0001)
PLAIN_IDS = range(20, 5000)


def engine_of(*, blocks=64, slots=8):
    batch = Batch(
        pool=BlockPool(blocks, 4),
        policy=ContinuousBatching(token_budget=64),
        slots=slots,
        context_length=256,
        eos_ids=frozenset({2}),
    )
    return SimulatedEngine(batch, STEP_TIME, PLAIN_IDS)


def spec(seq_id=1, prompt=10, output=6, **fields):
    return SequenceSpec(seq_id=seq_id, token_ids=list(range(prompt)), max_output_tokens=output, **fields)


def run_out(engine):
    tokens = {}
    while engine.has_work:
        result = engine.step()
        for seq_id, token in zip(result.seq_ids, result.tokens, strict=True):
            tokens.setdefault(seq_id, []).append(token)
    return tokens


def test_a_step_takes_the_time_of_the_model():
    engine = engine_of()
    engine.add(spec(1, prompt=10))
    assert engine.step().duration_s == pytest.approx(1.0 + 10 * 0.1)
    engine.add(spec(2, prompt=5))
    assert engine.step().duration_s == pytest.approx(1.0 + 5 * 0.1 + 0.01 + 11 * 0.0001)


def test_a_step_with_receipts_alone_takes_no_time():
    engine = engine_of()
    engine.add(spec())
    engine.cancel(1)
    result = engine.step()
    assert (result.cancelled[0].seq_id, result.duration_s) == (1, 0.0)


def test_tokens_follow_from_prompt_and_seed_and_are_never_special():
    texts = []
    for fields in ({}, {}, {"seed": 1}, {"prompt": 11}):
        engine = engine_of()
        engine.add(spec(output=30, **fields))
        texts.append(run_out(engine)[1])
    assert texts[0] == texts[1]
    assert len({tuple(text) for text in texts}) == 3
    assert all(token in PLAIN_IDS for text in texts for token in text)


@pytest.mark.parametrize("cut", [1, 3, 5])
def test_a_resumed_sequence_continues_with_the_same_tokens(cut):
    engine = engine_of()
    engine.add(spec())
    whole = run_out(engine)[1]
    other = engine_of()
    other.add(SequenceSpec(seq_id=9, token_ids=[*range(10), *whole[:cut]], emitted=cut, max_output_tokens=6 - cut))
    assert run_out(other)[9] == whole[cut:]


def test_batch_mates_and_preemption_do_not_change_a_text():
    engine = engine_of()
    engine.add(spec(output=20))
    single = run_out(engine)[1]
    batched = engine_of(blocks=9)
    for seq_id in range(3):
        batched.add(spec(seq_id, output=20))
    preempted = 0
    tokens = {}
    while batched.has_work:
        result = batched.step()
        preempted += len(result.preempted)
        for seq_id, token in zip(result.seq_ids, result.tokens, strict=True):
            tokens.setdefault(seq_id, []).append(token)
    assert preempted > 0
    assert tokens == {0: single, 1: single, 2: single}


def test_a_rejected_sequence_leaves_no_state():
    engine = engine_of(blocks=2)
    with pytest.raises(PromptTooLong):
        engine.add(spec())
    assert not engine.has_work
    engine.add(spec(prompt=4, output=2))
    assert len(run_out(engine)[1]) == 2


def time_for_mixed_lengths(batching):
    """Virtual seconds for outputs of which few are long, as in real traffic."""
    batch = Batch(pool=BlockPool(4000, 16), policy=batching, slots=16, context_length=2048)
    engine = SimulatedEngine(batch, StepTimeModel(), PLAIN_IDS)
    random = Random(3)
    for seq_id in range(160):
        engine.add(spec(seq_id, prompt=100, output=min(1000, int(random.lognormvariate(3.5, 1.2)) + 1)))
    elapsed = 0.0
    while engine.has_work:
        elapsed += engine.step().duration_s
    return elapsed


def test_continuous_batching_beats_static_batches_on_mixed_lengths():
    assert time_for_mixed_lengths(StaticBatching()) > 2 * time_for_mixed_lengths(ContinuousBatching(token_budget=512))


def test_thousands_of_sequences_in_a_small_pool_leave_no_state():
    random = Random(5)
    engine = engine_of(blocks=40, slots=16)
    ended, cancelled, preempted = set(), set(), 0
    for seq_id in range(3000):
        prompt = [random.randrange(3)] * random.randrange(1, 60)
        salt = random.choice([b"", b"a", b"b"])
        engine.add(
            SequenceSpec(seq_id=seq_id, token_ids=prompt, max_output_tokens=random.randrange(1, 60), cache_salt=salt)
        )
        if random.random() < 0.3:
            engine.cancel(random.randrange(seq_id + 1))
        for _ in range(random.randrange(8)):
            result = engine.step()
            ended |= {done.seq_id for done in result.finished}
            cancelled |= {receipt.seq_id for receipt in result.cancelled}
            preempted += len(result.preempted)
    while engine.has_work:
        result = engine.step()
        ended |= {done.seq_id for done in result.finished}
        cancelled |= {receipt.seq_id for receipt in result.cancelled}
    capacity = engine.capacity()
    assert ended | cancelled == set(range(3000))
    assert not ended & cancelled
    assert preempted > 100
    assert len(cancelled) > 100
    assert (capacity.blocks_free, capacity.blocks_promised, capacity.slots_free) == (40, 0, 16)
    assert repr(engine.batch).endswith(f"0 running, 0 waiting, <BlockPool 0/40 used, {capacity.blocks_cached} cached>>")


LOADED_MODULES_SCRIPT = """
import sys
from penstock.worker.engine.build import build_engine
from penstock.worker.engine.options import EngineOptions
engine, card = build_engine(EngineOptions(engine="sim", model=sys.argv[1]))
assert card.vocab_size == 304
print({"torch", "numpy", "gguf", "safetensors"} & set(sys.modules))
"""


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_a_process_that_only_simulates_loads_no_torch_and_no_numpy(tmp_path, kind):
    model = write_tiny_model(tmp_path / "tiny")
    if kind == "gguf":
        model = write_gguf(model, tmp_path / "tiny.gguf")
    run = subprocess.run(
        [sys.executable, "-c", LOADED_MODULES_SCRIPT, model], capture_output=True, text=True, check=False
    )
    assert (run.stdout, run.returncode) == ("set()\n", 0), run.stderr
