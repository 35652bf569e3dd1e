"""Lazy deletion in a heap: the order of the entries that are alive, and the work per call."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.queue.policies import lazy_heap
from penstock.queue.policies.lazy_heap import ENTRIES_SWEPT_PER_CALL, LazyHeap

MANY = 10_000


class Items:
    """Entries that are alive, and how often a heap has asked for them."""

    def __init__(self, *, counts_deletions=True):
        self.alive, self.checks, self.counts_deletions = set(), 0, counts_deletions
        self.heap = LazyHeap(self.is_alive, counts_deletions=counts_deletions)

    def is_alive(self, entry):
        self.checks += 1
        return entry in self.alive

    def push(self, entry):
        self.alive.add(entry)
        self.heap.push(entry)

    def delete(self, entry):
        self.alive.discard(entry)
        if self.counts_deletions:
            self.heap.on_deleted()

    def pop_all(self):
        found = []
        while entry := self.heap.first():
            assert self.heap.pop() is entry
            self.alive.discard(entry)
            found.append(entry)
        return found


@pytest.mark.parametrize("counts_deletions", [True, False])
def test_the_work_per_call_is_bounded_while_many_entries_are_pushed_and_deleted(counts_deletions):
    items, checks = Items(counts_deletions=counts_deletions), []
    for number in range(MANY):
        before = items.checks
        items.push((-number,))
        if number % 3:
            items.delete((-number,))
        checks.append(items.checks - before)
    assert max(checks) <= 2 * ENTRIES_SWEPT_PER_CALL
    assert len(items.heap) <= 4 * len(items.alive)
    assert sorted(items.heap) == sorted(items.alive)
    alive = sorted(items.alive)
    assert items.pop_all() == alive


@pytest.mark.parametrize("order", [iter, reversed], ids=["oldest first", "newest first"])
def test_deleted_entries_behind_the_first_one_are_freed_with_the_deletions(order):
    items = Items()
    for number in range(MANY):
        items.push((number,))
    for number in order(range(1, MANY)):
        items.delete((number,))
    assert len(items.heap) < MANY // 8
    assert items.heap.first() == (0,)
    items.delete((0,))
    assert items.heap.first() is None


@pytest.fixture
def small_sweeps(monkeypatch):
    """Sweep very small heaps, too."""
    monkeypatch.setattr(lazy_heap, "MIN_SWEEP_ENTRIES", 4)
    monkeypatch.setattr(lazy_heap, "ENTRIES_SWEPT_PER_CALL", 2)


@pytest.mark.usefixtures("small_sweeps")
@given(st.booleans(), st.lists(st.one_of(st.integers(0, 50), st.just("pop"), st.just("delete")), max_size=120))
def test_entries_come_in_order_while_a_sweep_is_under_way(counts_deletions, steps):
    items, number = Items(counts_deletions=counts_deletions), 0
    for step in steps:
        if step == "pop":
            expected = min(items.alive, default=None)
            assert items.heap.first() == expected
            if expected:
                items.alive.discard(items.heap.pop())
        elif step == "delete" and items.alive:
            items.delete(max(items.alive))
        elif isinstance(step, int):
            number += 1
            items.push((step, number))
        assert sorted(items.heap) == sorted(items.alive)
    alive = sorted(items.alive)
    assert items.pop_all() == alive
