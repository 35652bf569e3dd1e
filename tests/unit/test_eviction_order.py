"""The order of eviction: the newest ticket first, whatever the order of arrival, returns and removals."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.queue.policies.eviction_order import EvictionOrder
from queue_tickets import ticket


class ListedTickets:
    """An eviction order beside the plain list of its tickets."""

    def __init__(self):
        self.order, self.listed, self.taken, self.arrivals = EvictionOrder(), [], [], 0

    def arrive(self, enqueued):
        self.arrivals += 1
        self.list(ticket(f"t{self.arrivals}", enqueued=enqueued, arrival_number=self.arrivals))

    def list(self, each):
        each.listing_version += 1
        self.listed.append(each)
        self.order.push(each)

    def take(self, each):
        """Remove a ticket that a scheduler may return."""
        self.listed.remove(each)
        each.listing_version += 1
        self.order.remove(each)
        self.taken.append(each)

    def expected(self):
        return max(self.listed, key=lambda each: (each.enqueued, each.arrival_number), default=None)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_newest_ticket_is_evicted_first(data):
    tickets = ListedTickets()
    for _ in range(data.draw(st.integers(1, 60))):
        match data.draw(st.sampled_from(["arrive", "arrive late", "take", "evict", "return"])):
            case "arrive":
                tickets.arrive(100.0 + tickets.arrivals)
            case "arrive late":
                tickets.arrive(data.draw(st.integers(0, 100)))
            case "take" if tickets.listed:
                tickets.take(data.draw(st.sampled_from(tickets.listed)))
            case "evict" if tickets.listed:
                tickets.take(tickets.expected())
            case "return" if tickets.taken:
                tickets.list(tickets.taken.pop(data.draw(st.integers(0, len(tickets.taken) - 1))))
        assert tickets.order.newest() is tickets.expected()


@pytest.mark.parametrize("enqueued", [lambda number: number, lambda number: -number], ids=["in order", "late"])
def test_removed_tickets_are_not_kept(enqueued):
    tickets = ListedTickets()
    tickets.arrive(0.5)
    for number in range(10_000):
        tickets.arrive(enqueued(number))
        tickets.take(tickets.listed[-1])
    assert len(tickets.order._in_order) + len(tickets.order._others) < 200
