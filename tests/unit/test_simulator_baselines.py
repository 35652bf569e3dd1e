"""The baseline policies behave as their sources describe them."""

import pytest

from penstock.queue.policies.policy import Fit
from penstock.simulator.baselines import POLICIES
from penstock.simulator.baselines.clairvoyant import ClairvoyantPolicy
from penstock.simulator.baselines.gradient import GradientController, GradientLimitedFifo
from penstock.simulator.baselines.round_robin import RoundRobin
from penstock.simulator.mesh.engine import SimRun
from queue_tickets import STANDARD, ticket


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def always_fits(_):
    return Fit.NOW


def new_ticket(name, number, tenant="a", arrived=0.0):
    return ticket(name, tenant_id=tenant, arrival_number=number, arrived=arrived)


def test_flows_take_turns_independently_of_their_number_of_tickets():
    order = RoundRobin(ttl=1.0, clock=Clock())
    for number in range(4):
        order.push(new_ticket(f"a{number}", number))
    order.push(new_ticket("b0", 9, "b"))
    order.push(new_ticket("c0", 10, "c"))
    assert [order.pop_fitting(always_fits).ticket_id for _ in range(6)] == ["a0", "b0", "c0", "a1", "a2", "a3"]
    assert order.pop_fitting(always_fits) is None
    assert order.totals == (0, 0)


def test_a_ticket_older_than_its_time_to_live_is_evicted():
    clock = Clock()
    order = RoundRobin(ttl=1.0, clock=clock)
    order.push(new_ticket("old", 1))
    order.push(new_ticket("young", 2, "b", arrived=0.5))
    clock.now = 1.2
    assert order.pop_fitting(always_fits).ticket_id == "young"
    assert [each.ticket_id for each in order.pop_dropped()] == ["old"]
    assert order.pop_dropped() == []


def test_a_limit_falls_while_waits_grow_and_rises_while_they_do_not():
    gradient = GradientController(limit=100.0)
    gradient.record(0.01, 0.1)
    gradient.record(0.01, 0.3)
    assert gradient.limit == pytest.approx(100 * 1.25 + 10)
    gradient.record(1.0, 0.5)
    assert gradient.limit == pytest.approx(135 / 2 + 135**0.5), "the gradient is at least one half"


def test_a_ticket_above_the_limit_is_dropped_unless_it_is_offered_at_once():
    order = GradientLimitedFifo(GradientController(limit=2.0), Clock())
    for number in range(4):
        order.push(new_ticket(f"t{number}", number))
    assert [each.ticket_id for each in order.pop_dropped()] == ["t2", "t3"]
    order.push(new_ticket("t4", 4))
    for _ in range(5):
        order.pop_fitting(always_fits)
    assert order.pop_dropped() == [], "it was offered before the check"


def test_ttft_targets_apply_to_all_but_exempt_tickets():
    targets = POLICIES["penstock"].ttft_targets(1.0, {}, frozenset({"exempt"}))
    assert targets.ttft_limit(ticket("other", priority=STANDARD), 0.0) == 1.0
    assert targets.ttft_limit(ticket("exempt", priority=STANDARD), 0.0) is None
    assert POLICIES["fair"].ttft_targets(1.0, {}, frozenset()).by_class == {}


def run_of(number, tenant="a", output=10):
    return SimRun(number, tenant, prompt_tokens=90, output_tokens=output, max_output_tokens=10)


def test_clairvoyant_policy_charges_each_token_in_its_step_and_the_next_ones_in_advance():
    order = ClairvoyantPolicy(lookahead_tokens=4)
    for number, tenant in enumerate("aab"):
        order.push(new_ticket(f"{tenant}{number}", number, tenant))
    first = order.pop_fitting(always_fits)
    assert (first.ticket_id, first.charged_cost) == ("a0", 90 + 2 * 4)
    run = run_of(1, output=7)
    order.on_step([run], 0)
    run.first_token_step = 1
    order.on_step([run], 1)
    assert first.charged_cost == 90 + 2 * 5
    order.on_step([run], 5)
    assert first.charged_cost == 90 + 2 * 7, "no more tokens follow, although more were declared"
    order.charge(first, 500.0)
    assert first.charged_cost == 90 + 2 * 7, "a service report changes nothing"
    run.last_token_step = 3
    order.on_step([run], 4)
    assert first.charged_cost == 90 + 2 * 3, "its client left"


def test_clairvoyant_policy_charges_nothing_for_a_ticket_without_a_token():
    order = ClairvoyantPolicy(lookahead_tokens=4)
    order.push(new_ticket("a0", 0))
    taken = order.pop_fitting(always_fits)
    order.charge(taken, 40.0)  # part of its prompt had been computed when its client left
    assert taken.charged_cost == 0
    order.push(new_ticket("a1", 1))
    again = order.pop_fitting(always_fits)
    order.on_step([run_of(2)], 0)
    assert (taken.charged_cost, again.charged_cost) == (0, 90 + 2 * 4)


def test_plain_vtc_charges_the_tokens_of_its_own_tenants_alone():
    order = POLICIES["vtc"].new_scheduling_policy(Clock(), {})
    order.push(new_ticket("a0", 0))
    order.push(new_ticket("a1", 1))
    order.pop_fitting(always_fits)
    run, other_tenants_run = run_of(1), run_of(2, "elsewhere")
    run.first_token_step = other_tenants_run.first_token_step = 3
    order.on_step([run, other_tenants_run], 3)
    assert order.head()[1].virtual_tokens == 90 + 2


def test_plain_vtc_in_a_mesh_charges_tokens_at_intervals():
    clock = Clock()
    order = POLICIES["vtc_in_a_mesh"].new_scheduling_policy(clock, {})
    for each in (new_ticket("a0", 0), new_ticket("a1", 1)):
        order.push(each)
    order.pop_fitting(always_fits)
    run = run_of(1)
    run.first_token_step = 3
    charged = []
    for clock.now in (0.3, 0.4, 0.5, 0.6):
        order.on_step([run], 3)
        charged.append(order.head()[1].virtual_tokens - 90)
    assert charged == [2, 2, 2, 8]
