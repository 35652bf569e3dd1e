"""Scheduling policies: shares of classes, turns of tenants, ranks of tickets."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.queue.policies.cost import PREPAID_OUTPUT_TOKENS, cost_of, predicted_cost, running_cost
from penstock.queue.policies.factory import PolicyConfig, TenantPolicy
from penstock.queue.policies.fair_share import (
    MAX_LEAD_COST_SHARE,
    MIN_SWEEP_ACCOUNTS,
    TENANT_SAMPLE_SIZE,
    WeightedVtc,
)
from penstock.queue.policies.policy import Fit
from penstock.queue.policies.ranked_queue import MAX_TIMES_PASSED, RankedQueue
from penstock.queue.policies.ticket_order import EarliestDeadline, TicketOrder, TokenAware
from queue_tickets import BATCH, INTERACTIVE, STANDARD, START_UNIX_S, ticket

MAX_TICKET_TOKENS = 110  # tokens of any ticket here; 210 weighted
ARRIVAL_NUMBERS = itertools.count(1)


def anything(_):
    return Fit.NOW


def filled(order, tenants, per_tenant, **fields):
    number = 0
    for _ in range(per_tenant):
        for tenant in tenants:
            number += 1
            order.push(ticket(f"{tenant}/{number}", tenant_id=tenant, arrival_number=next(ARRIVAL_NUMBERS), **fields))
    return order


def take_whole(order):
    """Take a ticket and charge its full service."""
    taken = order.pop_fitting(anything)
    order.charge(taken, predicted_cost(taken))
    return taken


def served(order, count):
    """Serve tickets and return their tenants."""
    return Counter(take_whole(order).tenant_id for _ in range(count))


def test_tenants_take_turns_regardless_of_their_load():
    order = PolicyConfig()()
    filled(order, ["greedy"], 500)
    filled(order, ["modest"], 50, enqueued=START_UNIX_S + 9)
    assert served(order, 60) == {"greedy": 30, "modest": 30}


def test_without_fairness_the_first_ticket_goes_first():
    order = PolicyConfig(tenant_policy=TenantPolicy.NONE)()
    filled(order, ["greedy"], 50)
    filled(order, ["modest"], 50, enqueued=START_UNIX_S + 9)
    assert served(order, 50) == {"greedy": 50}


def test_four_times_the_weight_gets_four_times_the_completions():
    order = PolicyConfig()()
    filled(order, ["heavy"], 320, weight=4.0)
    filled(order, ["light"], 320, weight=1.0)
    assert served(order, 320)["heavy"] == pytest.approx(256, abs=0.02 * 320)


def test_a_returning_tenant_has_neither_credit_nor_debt():
    line = filled(WeightedVtc(), ["steady"], 200)
    served(line_order := _Wrapped(line), 100)
    filled(line, ["back"], 50)
    assert line.counter("back") == line.counter("steady")
    assert served(line_order, 20) == {"steady": 10, "back": 10}


def test_a_tenant_below_its_share_catches_up_by_its_burst_and_no_more():
    line = filled(WeightedVtc(burst_tokens=300.0), ["rare", "steady"], 1)
    order = _Wrapped(line)
    served(order, 2)
    filled(line, ["steady"], 200)
    served(order, 100)
    filled(line, ["rare", "new"], 50)
    assert line.counter("steady") - line.counter("rare") == 300
    assert line.counter("new") == line.counter("steady"), "a new tenant has no unused share"


def test_a_prediction_that_was_too_high_is_refunded_and_one_too_low_charged():
    order = PolicyConfig()()
    filled(order, ["a", "b"], 40)
    first, second = take_whole(order), take_whole(order)
    assert {first.tenant_id, second.tenant_id} == {"a", "b"}
    order.charge(first, first.charged_cost - 330)  # the cost of three tickets
    assert [take_whole(order).tenant_id for _ in range(3)] == [first.tenant_id] * 3
    order.charge(second, second.charged_cost - 330)
    order.charge(second, second.charged_cost + 330)
    assert served(order, 20)["a"] == 10


def test_a_returned_ticket_costs_its_tenant_nothing():
    line = filled(WeightedVtc(), ["a", "b"], 3)
    before = line.counter("a"), line.counter("b")
    taken = [line.pop_fitting(anything).ticket for _ in range(6)]
    for each in taken:
        line.push(each)
    assert (line.counter("a"), line.counter("b")) == before
    assert line.first() is taken[0]


def test_a_resumed_ticket_is_not_charged_its_prompt_again():
    resumed = ticket("r", attempt=2)
    assert predicted_cost(resumed) == 2 * resumed.max_output_tokens
    assert predicted_cost(ticket("t")) == 90 + 2 * 10


def test_accounts_without_waiting_tickets_are_swept():
    line = WeightedVtc()
    for number in range(50 * MIN_SWEEP_ACCOUNTS):
        each = ticket(f"t{number}", tenant_id=f"tenant-{number}", arrival_number=number)
        line.push(each)
        assert line.pop_fitting(anything).ticket is each
    assert len(line) <= 2 * MIN_SWEEP_ACCOUNTS


def test_large_tickets_of_one_tenant_do_not_block_small_ones_of_others():
    line = filled(WeightedVtc(), ["large"], 100, tokens=MAX_TICKET_TOKENS)
    filled(line, ["small"], 1, tokens=50)
    assert line.pop_fitting(lambda each: Fit.LATER if each.tokens > 60 else Fit.NOW).ticket.tenant_id == "small"


def test_a_lower_class_keeps_its_minimum_share():
    order = PolicyConfig(min_class_share=0.05)()
    filled(order, ["chat"], 2_000, priority=INTERACTIVE)
    filled(order, ["night"], 200, priority=BATCH)
    filled(order, ["day"], 200, priority=STANDARD)
    got = served(order, 1_000)
    assert got["night"] == pytest.approx(50, abs=2)
    assert got["day"] == pytest.approx(50, abs=2)


def test_a_minimum_share_of_zero_is_strict_priority():
    order = PolicyConfig(min_class_share=0.0)()
    filled(order, ["chat"], 300, priority=INTERACTIVE)
    filled(order, ["night"], 10, priority=BATCH)
    assert served(order, 300) == {"chat": 300}


def test_shortest_work_goes_first_within_the_ageing_bound():
    lane = RankedQueue(TokenAware(tokens_per_second=100.0, max_delay_s=5.0))
    lane.push(ticket("long", tokens=10_000, enqueued=START_UNIX_S, arrival_number=1))
    for number in range(20):
        lane.push(ticket(f"short {number}", tokens=100, enqueued=START_UNIX_S + number, arrival_number=number + 2))
    served_ids = [lane.pop_fitting(anything).ticket.ticket_id for _ in range(21)]
    assert served_ids.index("long") == 4, "tickets up to 4 s later pass it, none 5 s later"


def test_earliest_deadline_goes_first_with_a_default_deadline():
    lane = RankedQueue(EarliestDeadline(default_deadline_s=30.0))
    for number, deadline in enumerate([0.0, START_UNIX_S + 50, START_UNIX_S + 10]):
        lane.push(ticket(f"t{number}", deadline=deadline, arrival_number=number))
    assert [lane.pop_fitting(anything).ticket.ticket_id for _ in range(3)] == ["t2", "t0", "t1"]


def test_work_ahead_of_the_own_tenant_follows_the_rank():
    lane = RankedQueue(TokenAware(tokens_per_second=100.0, max_delay_s=60.0))
    for number in range(10):
        lane.push(ticket(f"t{number}", tokens=100 * (number + 1), arrival_number=number))
    assert lane.position_of(ticket("new", tokens=350)).tickets == 3


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=TENANT_SAMPLE_SIZE),
    sizes=st.lists(st.integers(11, MAX_TICKET_TOKENS), min_size=TENANT_SAMPLE_SIZE, max_size=TENANT_SAMPLE_SIZE),
    already=st.integers(0, 40),
    within=st.sampled_from([TicketOrder.FIFO, TicketOrder.DEADLINE]),
)
def test_the_position_equals_the_work_that_is_served_first(counts, sizes, already, within):
    order = PolicyConfig(ticket_order=within, min_class_share=0.0)()
    for place, (count, size) in enumerate(zip(counts, sizes, strict=False)):
        for number in range(count):
            order.push(
                ticket(f"{place}/{number}", tenant_id=f"{place}", tokens=size, arrival_number=100 * place + number)
            )
    for _ in range(min(already, sum(counts) - 1)):
        take_whole(order)
    new = ticket("new", tenant_id="0", tokens=50, arrival_number=10_000)
    expected = order.position_of(new)
    order.push(new)
    before = 0
    while (taken := take_whole(order)) is not new:
        before += taken.work
    assert abs(before - expected.work) <= len(counts) * MAX_TICKET_TOKENS, (
        "the estimate is off by at most one ticket per tenant"
    )


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_backlogged_tenants_differ_by_at_most_two_tickets(data):
    """The bound of the VTC theorem, 2 max(wp Lin, wq M), where charges are whole tickets."""
    order = PolicyConfig()()
    paid = Counter()
    for tenant in "abc":
        filled(order, [tenant], 60)
    for _ in range(data.draw(st.integers(1, 50))):
        match data.draw(st.sampled_from(["serve", "serve and return", "arrive"])):
            case "serve":
                taken = take_whole(order)
                paid[taken.tenant_id] += taken.charged_cost
            case "serve and return":
                order.push(order.pop_fitting(anything))
            case _:
                size = data.draw(st.integers(11, MAX_TICKET_TOKENS))
                filled(order, [data.draw(st.sampled_from("abc"))], 1)
                filled(order, ["other"], 1, tokens=size)
    assert max(paid["a"], paid["b"], paid["c"]) - min(paid["a"], paid["b"], paid["c"]) <= 2 * 2 * MAX_TICKET_TOKENS


class _Wrapped:
    """A tenant queue with the interface of a policy."""

    def __init__(self, line):
        self._line = line

    def pop_fitting(self, fit):
        return self._line.pop_fitting(fit).ticket

    def charge(self, ticket, cost):
        self._line.charge(ticket, cost)


def test_a_ticket_that_does_not_fit_blocks_tenants_that_lead_by_a_share_of_its_cost():
    line = WeightedVtc()
    line.push(ticket("large", tenant_id="large", tokens=10_000, arrival_number=1))
    filled(line, ["small"], 200)

    def small_fits(each):
        return Fit.NOW if each.tenant_id == "small" else Fit.LATER

    count = 0
    while (found := line.pop_fitting(small_fits)).ticket:
        line.charge(found.ticket, predicted_cost(found.ticket))
        found.record_passes()
        count += 1
    assert count == MAX_LEAD_COST_SHARE * 10_010 // MAX_TICKET_TOKENS + 1, (
        "a share of the ticket's cost, and the ticket that exceeds it"
    )


def test_lower_classes_pass_a_ticket_that_does_not_fit_a_bounded_number_of_times():
    order = PolicyConfig(min_class_share=0.0)()
    order.push(ticket("large", tokens=10_000, priority=INTERACTIVE, arrival_number=1))
    filled(order, ["small"], 2 * MAX_TIMES_PASSED, priority=BATCH)

    def small_fits(each):
        return Fit.NOW if each.tenant_id == "small" else Fit.LATER

    count = 0
    while order.pop_fitting(small_fits):
        count += 1
    assert count == MAX_TIMES_PASSED
    assert order.pop_fitting(anything).ticket_id == "large"


@given(most=st.integers(1, 2_000), output=st.integers(0, 2_000), attempt=st.integers(1, 2))
def test_the_advance_charge_is_small_and_within_the_output_limit(most, output, attempt):
    each = ticket("t", attempt=attempt)
    each.max_output_tokens = most
    output = min(output, most)
    ahead = running_cost(each, output) - cost_of(each, each.prompt_tokens, output)
    assert ahead == 2 * min(PREPAID_OUTPUT_TOKENS, most - output)
