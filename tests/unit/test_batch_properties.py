"""The batch against a model of KV memory: after any joins, ends and preemptions, each slice reads its own KV."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.block_pool import BlockPool
from penstock.worker.engine.batching.policy import ContinuousBatching, StaticBatching
from penstock.worker.engine.interface import SequenceSpec

BLOCK_SIZE = 4


def next_token(ids):
    """A token that depends on all tokens before it, as a model's does."""
    return sum((place + 1) * token for place, token in enumerate(ids)) % 50


def alone(spec):
    ids = list(spec.token_ids)
    for _ in range(spec.max_output_tokens):
        ids.append(next_token(ids))
        if ids[-1] in spec.stop_ids:
            break
    return ids[len(spec.token_ids) :]


class KvMemory:
    """The content written to each position of each block."""

    def __init__(self, blocks):
        self.cells = [[None] * BLOCK_SIZE for _ in range(blocks)]

    def compute(self, part):
        sequence = part.sequence
        for position in range(part.end):
            cell = self.cells[sequence.table[position // BLOCK_SIZE]]
            if position >= part.start:
                cell[position % BLOCK_SIZE] = tuple(sequence.ids[: position + 1])
            assert cell[position % BLOCK_SIZE] == tuple(sequence.ids[: position + 1])
        return next_token(sequence.ids) if part.is_sampled else None


def assert_each_block_has_one_writer(batch, plan):
    for part in plan.slices:
        written = range(part.start // BLOCK_SIZE, (part.end - 1) // BLOCK_SIZE + 1)
        for other in batch.running:
            for index in written if other is not part.sequence else ():
                if part.sequence.table[index] in other.table:  # then the other still waits for it
                    assert other.filled_blocks <= index < other.shared_blocks
                    assert other.table[index] == part.sequence.table[index]


def assert_capacity_is_what_a_count_finds(batch):
    alive, capacity = [*batch.running, *batch.waiting], batch.capacity()
    promised = sum(batch.pool.blocks_for(each.max_total_tokens) - len(each.table) for each in alive)
    assert capacity.blocks_promised == promised
    assert capacity.prefill_backlog_tokens == sum(each.remaining for each in alive if each.remaining > 1)


specs = st.builds(
    lambda prompt, output, emitted, salt, stops: {
        "token_ids": prompt,
        "max_output_tokens": output,
        "emitted": min(emitted, len(prompt) - 1),
        "cache_salt": salt,
        "stop_ids": frozenset(stops),
    },
    prompt=st.one_of(
        st.lists(st.integers(0, 2), min_size=1, max_size=14),
        st.integers(1, 16).map(lambda length: [5] * length),  # many equal beginnings
    ),
    output=st.integers(1, 9),
    emitted=st.integers(0, 3),
    salt=st.sampled_from([b"", b"a", b"b"]),
    stops=st.lists(st.integers(0, 49), max_size=2),
)
events = st.lists(st.one_of(specs, st.integers(0, 12), st.none()), max_size=30)  # add, cancel, just a step
policies = st.one_of(st.builds(ContinuousBatching, token_budget=st.integers(1, 24)), st.just(StaticBatching()))


@given(events, policies, st.integers(1, 5), st.integers(7, 20))
def test_every_sequence_gets_the_same_text_as_alone(events, batching, slots, blocks):
    """No deadlock and no block allocated twice; the oldest progresses in every step, so preempted sequences return."""
    batch = Batch(pool=BlockPool(blocks, BLOCK_SIZE), policy=batching, slots=slots, context_length=64)
    memory = KvMemory(blocks)
    added, emitted, finished, cancelled = {}, {}, set(), set()
    pending = list(events)
    while pending or batch.has_work:
        event = pending.pop(0) if pending else None
        if isinstance(event, dict):
            spec = SequenceSpec(seq_id=len(added), **event)
            added[spec.seq_id], emitted[spec.seq_id] = spec, []
            batch.add(spec)
        elif isinstance(event, int):
            batch.cancel(event)
        plan = batch.plan()
        alive = set(added) - finished - cancelled - {receipt.seq_id for receipt in plan.result.cancelled}
        assert not alive or min(alive) in {part.sequence.spec.seq_id for part in plan.slices}
        assert_each_block_has_one_writer(batch, plan)
        tokens = [memory.compute(part) for part in plan.slices]
        tokens = [token for token in tokens if token is not None]
        result = batch.commit(plan, tokens, [0.0] * len(tokens))
        for seq_id, token, index in zip(result.seq_ids, result.tokens, result.indexes, strict=True):
            assert index == added[seq_id].emitted + len(emitted[seq_id])
            emitted[seq_id].append(token)
        finished |= {done.seq_id for done in result.finished}
        cancelled |= {receipt.seq_id for receipt in result.cancelled}
        held = {block for sequence in batch.running for block in sequence.table}
        assert batch.pool.used == len(held)
        assert_capacity_is_what_a_count_finds(batch)
        assert batch.step < 3000, batch
    assert finished | cancelled == set(added)
    assert not finished & cancelled
    for seq_id in finished:
        assert emitted[seq_id] == alone(added[seq_id])
    for seq_id in cancelled:
        assert alone(added[seq_id])[: len(emitted[seq_id])] == emitted[seq_id]
    assert batch.pool.free == blocks
    assert batch.capacity().slots_free == slots
