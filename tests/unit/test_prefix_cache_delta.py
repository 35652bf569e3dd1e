"""The reports on a worker's prefix cache together equal its content."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.edge.upstreams.hashing import block_hashes
from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.block_pool import BlockPool
from penstock.worker.engine.batching.policy import ContinuousBatching
from penstock.worker.engine.interface import SequenceSpec
from penstock.worker.scheduler_session.prefix_cache_delta import DELTA_INTERVAL_S, PrefixCacheTracker

SALT = b"s" * 16
BLOCK_TOKENS = 4


def name(number):
    return bytes([number]) * 16


def short(number):
    return int.from_bytes(bytes([number]) * 8, "little")


def test_the_first_report_on_a_stream_is_a_snapshot():
    cache = PrefixCacheTracker()
    cache.apply({name(1): True})
    assert cache.pop_delta(0.0, at_once=False) == ({short(1)}, set(), True)
    cache.apply({name(2): True})
    cache.on_stream_opened()
    assert cache.pop_delta(9.0, at_once=False) == ({short(1), short(2)}, set(), True)


def test_changes_wait_for_the_interval_or_the_last_run():
    cache = PrefixCacheTracker()
    cache.pop_delta(0.0, at_once=False)
    cache.apply({name(1): True})
    assert cache.pop_delta(DELTA_INTERVAL_S - 0.01, at_once=False) is None
    assert cache.pop_delta(DELTA_INTERVAL_S - 0.01, at_once=True) == ({short(1)}, set(), False)


def test_a_block_added_and_removed_between_two_reports_is_not_reported():
    cache = PrefixCacheTracker()
    cache.pop_delta(0.0, at_once=False)
    cache.apply({name(1): True})
    cache.apply({name(1): False})
    assert cache.pop_delta(1.0, at_once=False) is None


def test_a_lost_engine_has_no_cached_blocks():
    cache = PrefixCacheTracker()
    cache.apply({name(1): True})
    cache.pop_delta(0.0, at_once=False)
    cache.clear()
    assert cache.pop_delta(1.0, at_once=False) == (set(), {short(1)}, False)


@given(
    st.lists(st.one_of(st.dictionaries(st.integers(0, 5), st.booleans()), st.sampled_from(["report", "begin", "die"])))
)
def test_all_reports_of_a_stream_together_give_the_cached_blocks(events):
    cache, known, now = PrefixCacheTracker(), set(), 0.0
    for event in [*events, "report"]:
        now += DELTA_INTERVAL_S
        if isinstance(event, dict):
            cache.apply({name(number): is_held for number, is_held in event.items()})
        elif event == "begin":
            cache.on_stream_opened()
        elif event == "die":
            cache.clear()
        elif change := cache.pop_delta(now, at_once=False):
            known = (set() if change.is_snapshot else known) - change.removed | change.added
            assert not change.added & change.removed
    assert known == cache.held


def test_edges_name_the_beginning_of_a_prompt_as_engines_name_its_blocks():
    prompt = list(range(4 * BLOCK_TOKENS + 1))
    cache, batch = PrefixCacheTracker(), batch_of(blocks=16)
    run(batch, cache, prompt, SALT)
    hashes = block_hashes(prompt, BLOCK_TOKENS, SALT)
    assert len(hashes) == 4
    assert set(hashes) <= cache.held


def test_evicted_blocks_are_reported():
    cache, batch = PrefixCacheTracker(), batch_of(blocks=6)
    first, second = list(range(4 * BLOCK_TOKENS)), list(range(100, 100 + 5 * BLOCK_TOKENS))
    run(batch, cache, first, SALT)
    run(batch, cache, second, SALT)
    assert set(block_hashes(second, BLOCK_TOKENS, SALT)) <= cache.held
    assert set(block_hashes(first, BLOCK_TOKENS, SALT)) - cache.held
    assert len(cache.held) == batch.pool.cached


def batch_of(blocks):
    pool = BlockPool(blocks, BLOCK_TOKENS)
    return Batch(pool=pool, policy=ContinuousBatching(token_budget=64), slots=2, context_length=64)


def run(batch, cache, prompt, salt):
    spec = SequenceSpec(seq_id=len(prompt), token_ids=prompt, max_output_tokens=1, cache_salt=salt)
    batch.add(spec)
    while batch.has_work:
        plan = batch.plan()
        count = len(plan.sampled)
        cache.apply(batch.commit(plan, [7] * count, [0.0] * count).cache_changes)
