"""Burst credit: tickets of tenants within their share are express, go first in their class, and have express credit."""

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.queue import effects as out
from penstock.queue.policies.burst_credit import MAX_CREDIT_TICKETS, VirtualClock
from penstock.queue.policies.cost import predicted_cost
from penstock.queue.policies.factory import PolicyConfig
from penstock.queue.policies.policy import Fit
from queue_tickets import START_UNIX_S, ShardDriver, offered, ticket

TICKET_COST = 30.0  # weighted tokens of one ticket: ten of prompt, ten of output
ARRIVAL_NUMBERS = count(1)


def enqueue(order, name, tenant, *, weight=1.0, **fields):
    new = ticket(name, tenant_id=tenant, tokens=20, weight=weight, arrival_number=next(ARRIVAL_NUMBERS), **fields)
    new.is_express = order.is_express(new)
    order.push(new)
    return new


def serve(order, tickets=1):
    return [order.pop_fitting(lambda _: Fit.NOW) for _ in range(tickets)]


def policy_with_backlog(served=40):
    """Serve a backlogged tenant while no other tenant has tickets."""
    order = PolicyConfig()()
    for number in range(200):
        enqueue(order, f"backlogged-{number}", "backlogged", enqueued=START_UNIX_S + number)
    if served:
        enqueue(order, "first", "quiet", enqueued=START_UNIX_S + 500)
        serve(order, 2 * served)
    return order


def count_express(order, tenant, tickets, **fields):
    """Return the number of express tickets of a burst."""
    burst = [
        enqueue(order, f"{tenant}-{at}", tenant, enqueued=START_UNIX_S + 600 + at, **fields) for at in range(tickets)
    ]
    return sum(each.is_express for each in burst)


def test_a_tenant_that_did_not_use_its_share_goes_before_the_backlog():
    order = policy_with_backlog()
    quiet = enqueue(order, "quiet", "quiet", enqueued=START_UNIX_S + 1_000)
    assert quiet.is_express
    assert order.head()[0] is quiet
    assert serve(order) == [quiet]
    assert serve(order)[0].tenant_id == "backlogged"


def test_a_new_or_backlogged_tenant_has_no_burst_credit():
    order = policy_with_backlog()
    assert count_express(order, "backlogged", 3) == 0
    assert count_express(order, "new", 3) == 0


def test_without_a_backlog_no_tenant_earns_credit():
    order = PolicyConfig()()
    for number in range(50):
        for tenant in ("often", "often", "often", "seldom"):
            assert not enqueue(order, f"{tenant}-{number}", tenant).is_express
            serve(order)


def test_a_burst_is_express_as_far_as_credit_covers_it():
    order = policy_with_backlog(served=8)
    covered = count_express(order, "quiet", 100)
    assert 1 <= covered <= 16, "at most the service of the other tenant in that time"
    assert count_express(policy_with_backlog(served=90), "quiet", 100) == MAX_CREDIT_TICKETS


def test_twice_the_weight_covers_twice_as_much():
    once, twice = (count_express(policy_with_backlog(served=3), "quiet", 100, weight=weight) for weight in (1.0, 2.0))
    assert twice == 2 * once


def test_a_returned_express_ticket_stays_express_and_is_refunded():
    order = policy_with_backlog()
    quiet = enqueue(order, "quiet", "quiet", enqueued=START_UNIX_S + 1_000)
    serve(order)
    order.push(quiet)
    assert not quiet.charged_cost
    assert serve(order) == [quiet]


def test_express_tickets_can_be_evicted():
    order = policy_with_backlog()
    quiet = enqueue(order, "quiet", "quiet", enqueued=START_UNIX_S + 1_000)
    assert order.next_victim(1)[0] is quiet
    order.remove(quiet)
    assert order.next_victim(1)[0].tenant_id == "backlogged"


def test_the_virtual_clock_stops_while_no_tenant_waits():
    clock = VirtualClock()
    clock.start(100.0)
    assert clock.now(130.0) == 30.0
    clock.stop(140.0)
    assert clock.now(999.0) == 40.0
    clock.start(200.0)
    assert clock.now(201.0) == 41.0


@settings(deadline=None)
@given(
    bursts=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=60),
    weight=st.sampled_from([0.5, 1.0, 3.0]),
)
def test_no_pattern_of_bursts_gains_more_than_share_and_credit(bursts, weight):
    """The share of a tenant is the service of a backlogged tenant times the weight; credit is bounded."""
    order, spent, backlogged_service, enqueued_count = PolicyConfig()(), 0.0, 0.0, 0
    for number in range(400):
        enqueue(order, f"backlogged-{number}", "backlogged", enqueued=START_UNIX_S + number)
    for size, served in bursts:
        for _ in range(size):
            enqueued_count += 1
            new = enqueue(
                order, f"bursty-{enqueued_count}", "bursty", weight=weight, enqueued=START_UNIX_S + enqueued_count
            )
            spent += predicted_cost(new) if new.is_express else 0.0
        for served_ticket in serve(order, served):
            backlogged_service += TICKET_COST if served_ticket.tenant_id == "backlogged" else 0.0
        assert spent <= weight * (backlogged_service + TICKET_COST) + MAX_CREDIT_TICKETS * TICKET_COST


# Express credit.


@pytest.fixture
def shard():
    shard = ShardDriver(max_depth=1_000, max_tokens=1_000_000, policy=PolicyConfig())
    shard.connect()
    for number in range(60):
        shard.enqueue(f"backlogged-{number}", tenant_id="backlogged")
    shard.enqueue("first", tenant_id="quiet")
    shard.credit(40)
    return shard


def test_express_credit_is_used_for_express_tickets_only(shard):
    assert shard.credit(0, express=2) == []
    effects = shard.enqueue("quiet", tenant_id="quiet")
    assert [each for each in effects if isinstance(each, out.Offer) and each.uses_express_credit]
    assert offered(effects) == ["quiet"]
    assert shard.book.schedulers["s"].credits["m"].express_tickets == 1


def test_express_credit_stays_when_other_credit_is_returned(shard):
    shard.credit(0, express=2, max_tokens=1, return_unused=True)
    assert shard.book.schedulers["s"].credits["m"].express_tickets == 2


def test_resumed_tickets_may_use_express_credit(shard):
    shard.credit(0, express=1)
    assert offered(shard.enqueue("resumed", tenant_id="backlogged", attempt=2)) == ["resumed"]


def test_an_express_ticket_waits_for_a_higher_class(shard):
    shard.enqueue("quiet", tenant_id="quiet")
    shard.enqueue("above", tenant_id="other", priority=1)
    assert shard.credit(0, express=1) == []


def test_a_decline_voids_express_credit(shard):
    shard.credit(0, express=2)
    shard.enqueue("quiet", tenant_id="quiet")
    shard.decline("quiet")
    assert shard.book.schedulers["s"].credits["m"].express_tickets == 0
    assert shard.credit(0, express=1) == ["quiet"]


def test_heads_offers_and_leases_carry_the_express_flag(shard):
    list(shard.heads())
    shard.enqueue("quiet", tenant_id="quiet")
    assert [head.is_express for head in shard.heads()] == [True]
