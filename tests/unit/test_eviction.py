"""Eviction order of cached blocks: what is asked for again is kept, and chains lose their ends first."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.worker.engine.batching.block_pool import BlockPool
from penstock.worker.engine.batching.eviction import EvictionOrder

BLOCKS = 16
PROMPT = [b"prompt %d" % each for each in range(4)]


def run(pool, names):
    """Run a sequence with these full blocks. Return the number of blocks that were found."""
    found = pool.find_prefix(names)
    table = pool.allocate(found, len(names) - len(found))
    for block, name in list(zip(table, names, strict=True))[len(found) :]:
        pool.publish(block, name)
    pool.release(table)
    return len(found)


def names_of(number, count=4):
    return [b"%d %d" % (number, each) for each in range(count)]


def test_a_prompt_that_was_used_again_survives_many_that_are_not():
    pool = BlockPool(BLOCKS, 16)
    run(pool, PROMPT)
    assert run(pool, PROMPT) == 4
    for number in range(100):
        run(pool, names_of(number))
    assert run(pool, PROMPT) == 4


def test_a_prompt_that_returns_soon_after_its_eviction_is_kept():
    pool = BlockPool(BLOCKS, 16)
    run(pool, PROMPT)
    for number in range(4):
        run(pool, names_of(number))
    assert run(pool, PROMPT) == 0
    for number in range(4, 100):
        run(pool, names_of(number))
    assert run(pool, PROMPT) == 4


def test_a_prompt_that_nobody_uses_any_more_is_evicted_by_others_that_are_used():
    pool = BlockPool(BLOCKS, 16)
    for _ in range(2):
        run(pool, PROMPT)
    for number in range(4):
        run(pool, names_of(number))
        run(pool, names_of(number))
    assert run(pool, PROMPT) == 0


def test_the_names_that_are_remembered_are_bounded():
    pool = BlockPool(BLOCKS, 16)
    for number in range(100):
        run(pool, names_of(number))
    assert len(pool._cached._evicted) <= BLOCKS
    assert len(pool._cached._reused) <= BLOCKS


def test_the_order_counts_each_block_once():
    order = EvictionOrder(4)
    for block in range(4):
        order.add(block)
    order.on_reused(2)
    assert len(order) == 3
    order.add(2)
    assert [order.pop() for _ in range(4)] == [0, 1, 3, 2]


@given(
    prompts=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8), st.booleans()), max_size=60),
    blocks=st.integers(8, 24),
)
def test_a_cache_holds_chains_from_their_beginning(prompts, blocks):
    """Any two prompts share a prefix of any length; the index of a scheduler finds the longest one by bisection."""
    pool, running = BlockPool(blocks, 16), []
    for family, length, keeps_running in prompts:
        names = [b"%d %d" % (family if depth > 1 else 0, depth) for depth in range(length)]
        found = pool.find_prefix(names)
        while (table := pool.allocate(found, length - len(found))) is None:
            pool.release(running.pop(0))
            found = pool.find_prefix(names)
        for block, name in list(zip(table, names, strict=True))[len(found) :]:
            pool.publish(block, name)
        running.append(table)
        if not keeps_running:
            pool.release(running.pop())
        for other in range(4):
            chain = [b"%d %d" % (other if depth > 1 else 0, depth) for depth in range(8)]
            held = [name in pool._block_by_hash for name in chain]
            assert held == sorted(held, reverse=True)
