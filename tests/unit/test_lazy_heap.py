"""Lazy deletion in a heap: the order of the entries that are alive, and the work per call."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.queue.policies import lazy_heap
from penstock.queue.policies.lazy_heap import ENTRIES_SWEPT_PER_PUSH, MAX_ENTRIES_SWEPT_AT_ONCE, LazyHeap

MANY = 5 * MAX_ENTRIES_SWEPT_AT_ONCE


class Items:
    """Entries that are alive, and how often a heap has asked for them."""

    def __init__(self):
        self.alive, self.checks = set(), 0
        self.heap = LazyHeap(self.is_alive)

    def is_alive(self, entry):
        self.checks += 1
        return entry in self.alive

    def push(self, entry):
        self.alive.add(entry)
        self.heap.push(entry)

    def pop_all(self):
        found = []
        while entry := self.heap.first():
            assert self.heap.pop() is entry
            self.alive.discard(entry)
            found.append(entry)
        return found


def test_a_sweep_of_many_entries_is_spread_over_pushes():
    items, checks = Items(), []
    for number in range(MANY):
        before = items.checks
        items.push((-number,))
        checks.append(items.checks - before)
        if number % 3:
            items.alive.discard((-number,))
    assert max(checks) <= MAX_ENTRIES_SWEPT_AT_ONCE + 1
    assert Counter(checks)[ENTRIES_SWEPT_PER_PUSH] > 0
    assert len(items.heap) <= 2 * MAX_ENTRIES_SWEPT_AT_ONCE + MANY // 3 + MAX_ENTRIES_SWEPT_AT_ONCE
    assert sorted(items.heap) == sorted(items.alive)
    alive = sorted(items.alive)
    assert items.pop_all() == alive


@pytest.fixture
def small_sweeps(monkeypatch):
    """Spread the sweeps of small heaps, too."""
    monkeypatch.setattr(lazy_heap, "MAX_ENTRIES_SWEPT_AT_ONCE", 0)
    monkeypatch.setattr(lazy_heap, "MIN_SWEEP_ENTRIES", 4)
    monkeypatch.setattr(lazy_heap, "ENTRIES_SWEPT_PER_PUSH", 2)


@pytest.mark.usefixtures("small_sweeps")
@given(st.lists(st.one_of(st.integers(0, 50), st.just("pop"), st.just("delete")), max_size=120))
def test_entries_come_in_order_while_a_sweep_is_under_way(steps):
    items, number = Items(), 0
    for step in steps:
        if step == "pop":
            expected = min(items.alive, default=None)
            assert items.heap.first() == expected
            if expected:
                items.alive.discard(items.heap.pop())
        elif step == "delete" and items.alive:
            items.alive.discard(max(items.alive))
        elif isinstance(step, int):
            number += 1
            items.push((step, number))
        assert sorted(items.heap) == sorted(items.alive)
    alive = sorted(items.alive)
    assert items.pop_all() == alive
