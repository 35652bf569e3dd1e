from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.worker.engine.batching.block_pool import NO_WRITER, BlockPool, chain_hash, root_hash


def test_a_pool_allocates_each_block_once():
    pool = BlockPool(blocks=4, block_size=16)
    first, second = pool.allocate([], 2), pool.allocate([], 2)
    assert sorted(first + second) == [0, 1, 2, 3]
    assert repr(pool) == "<BlockPool 4/4 used, 0 cached>"


def test_a_released_block_is_the_next_one_allocated():
    pool = BlockPool(blocks=100, block_size=16)
    table = pool.allocate([], 3)
    kept = list(table)
    pool.release(table)
    assert sorted(pool.allocate([], 3)) == sorted(kept)


def test_a_table_that_does_not_fit_takes_no_block():
    pool = BlockPool(blocks=4, block_size=16)
    assert pool.allocate([], 5) is None
    assert pool.allocate([], 3, min_free=2) is None
    assert pool.free == 4


def test_a_table_cannot_grow_beyond_the_pool():
    pool = BlockPool(blocks=1, block_size=16)
    table = pool.allocate([], 1)
    assert not pool.extend(table)
    assert len(table) == 1


def test_released_content_is_found_again_under_its_name():
    pool = BlockPool(blocks=4, block_size=16)
    table = pool.allocate([], 2)
    names = [b"one", b"two"]
    for block, name in zip(table, names, strict=True):
        pool.publish(block, name)
    kept = list(table)
    assert pool.release(table) == 2
    assert pool.find_prefix([*names, b"three"]) == kept
    assert repr(pool) == "<BlockPool 0/4 used, 2 cached>"


def test_a_shared_block_is_free_only_after_its_last_user():
    pool = BlockPool(blocks=4, block_size=16)
    mine = pool.allocate([], 1)
    pool.publish(mine[0], b"prompt")
    yours = pool.allocate(pool.find_prefix([b"prompt"]), 1)
    assert yours[0] == mine[0]
    assert pool.release(mine) == 0
    assert pool.release(yours) == 2
    assert pool.free == 4


def test_reviving_cached_blocks_counts_against_the_free_ones():
    pool = BlockPool(blocks=2, block_size=16)
    table = pool.allocate([], 1)
    pool.publish(table[0], b"prompt")
    pool.release(table)
    assert pool.allocate(pool.find_prefix([b"prompt"]), 2) is None
    assert len(pool.allocate(pool.find_prefix([b"prompt"]), 1)) == 2


def test_the_end_of_the_least_recent_chain_is_evicted_first():
    pool = BlockPool(blocks=4, block_size=16)
    for names in ([b"a1", b"a2"], [b"b1", b"b2"]):
        table = pool.allocate([], 2)
        for block, name in zip(table, names, strict=True):
            pool.publish(block, name)
        pool.release(table)
    pool.allocate([], 1)
    assert len(pool.find_prefix([b"a1", b"a2"])) == 1
    assert len(pool.find_prefix([b"b1", b"b2"])) == 2


def test_hashes_differ_by_salt_and_by_prefix():
    salted = {chain_hash(root_hash(salt), [1, 2]) for salt in (b"tenant-a", b"tenant-b")}
    after = {chain_hash(chain_hash(root_hash(b"tenant-a"), [before]), [1, 2]) for before in (7, 8)}
    assert len(salted | after) == 4


@pytest.mark.parametrize(("blocks", "block_size"), [(0, 16), (4, 0)])
def test_an_empty_pool_is_rejected(blocks, block_size):
    with pytest.raises(ValueError, match="needs blocks"):
        BlockPool(blocks, block_size)


def test_announced_content_is_found_and_loses_its_writer_on_release():
    pool = BlockPool(blocks=4, block_size=16)
    mine = pool.allocate([], 2)
    pool.announce(mine[0], b"first", writer=1)
    pool.announce(mine[1], b"second", writer=1)
    yours = pool.allocate(pool.find_prefix([b"first", b"second"])[:1], 0)
    assert pool.writer(yours[0]) == 1
    pool.release(mine, writer=1)
    assert pool.writer(yours[0]) == NO_WRITER
    assert pool.find_prefix([b"first", b"second"]) == yours  # no later sequence can fill a block that has no owner
    pool.claim(yours[0], 2)
    pool.publish(yours[0], b"first")
    assert pool.writer(yours[0]) is None
    assert pool.release(yours, writer=2) == 1
    assert (pool.free, pool.cached) == (4, 1)


POOL_OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["open", "extend", "release", "publish", "announce"]), st.integers(0, 7), st.integers(0, 5)
    ),
    max_size=80,
)


@given(POOL_OPERATIONS)
def test_no_order_of_calls_leaks_or_doubles_a_block(operations):
    pool = BlockPool(blocks=6, block_size=4)
    tables: list[list[int]] = []
    for verb, which, count in operations:
        table = tables[which % len(tables)] if tables else None
        if verb == "open":
            opened = pool.allocate(pool.find_prefix(f"{which}.{depth}".encode() for depth in range(count)), count % 3)
            tables += [opened] if opened is not None else []
        elif table and verb == "extend":
            pool.extend(table)
        elif table and verb == "publish":
            pool.publish(table[count % len(table)], f"{which}.{count % len(table)}".encode())
        elif table and verb == "announce":
            pool.announce(table[count % len(table)], f"{which}.{count % len(table)}".encode(), writer=which)
        elif table is not None and verb == "release":
            tables.pop(which % len(tables))  # by position, as another may be equal
            pool.release(table, writer=which)
        held = Counter(block for each in tables for block in each)
        assert pool.used == len(held)
        assert pool.free + pool.used == 6
        assert 0 <= pool.cached <= pool.free
    for table in tables:
        pool.release(table)
    assert pool.free == 6
