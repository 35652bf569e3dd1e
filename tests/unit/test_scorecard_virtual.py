"""Proofs under virtual time see what is wrong, and count as they say."""

from dataclasses import replace

import pytest

from penstock.bench.history import OK, History
from penstock.proofs.simulated import fairness, neighbour, overload, work_conservation
from penstock.proofs.simulated.overload import KINDS, Sweep
from penstock.proofs.simulated.recovery import END, recovered_after
from penstock.proofs.simulated.scenarios import chat, world
from penstock.queue.owed import TtftCommitments
from penstock.scheduler.effects import GrantCredit
from penstock.simulator.planning import MOST, Trial, fewest
from penstock.simulator.scenario import Client
from penstock.simulator.simulation import Simulation
from penstock.simulator.traffic.arrivals import Poisson


def history(started, outcome=OK):
    found = History(0, started)
    found.end(started + 1, outcome)
    return found


def test_a_share_of_the_peak_is_of_the_same_seeds_peak_around_the_knee():
    kind = KINDS["tokens"]
    sweep = Sweep({1.0: [{kind: 100}, {kind: 10}], 3.0: [{kind: 50}, {kind: 12}], 10.0: [{kind: 400}, {kind: 1}]})
    assert sweep.shares(3.0, "tokens") == [50, 120]


def test_a_quiet_tenant_is_judged_by_the_requests_of_all_seeds():
    answered, judged, usual, worst = fairness.quiet_lines([[1.0] * 100, [1.2] * 100], [[1.0] * 100, [0.9] * 100])
    assert (answered.measured, answered.is_met) == (0, True)
    assert (judged.measured, judged.goal) == (pytest.approx(1.2), "<= 1.25")
    assert (usual.measured, worst.measured) == (pytest.approx((1.0 + 1.2 / 0.9) / 2), pytest.approx(1.2 / 0.9))


def test_a_quiet_tenant_that_is_refused_does_not_pass_for_one_that_waits_for_nothing():
    answered = fairness.quiet_lines([[1.0] * 98], [[1.0] * 100])[0]
    assert (answered.measured, answered.is_met) == (pytest.approx(2), False)


def test_recovered_is_from_when_on_nothing_fails_again():
    calm = [history(END + second / 2) for second in range(60)]
    assert recovered_after(calm) == 0
    relapse = [history(END + 7.2, "OVERLOADED")]
    assert recovered_after([*calm, *relapse]) == 8, "one in eleven fails wherever it is among them"
    assert recovered_after([history(each.started, "OVERLOADED") for each in calm]) == 25


def test_noise_makes_no_declaration_smaller_than_the_answer():
    noisy = chat(Poisson(20.0), over_declare=2.5, declare_noise=0.6)
    requests = Simulation(world("noise", noisy, duration=5.0)).run().ledger.requests
    multiples = [each.declared / each.output for each in requests]
    assert min(multiples) >= 1.0
    assert max(multiples) > 3.5
    assert min(multiples) < 1.5


def test_short_prompts_of_a_burst_make_none_late_that_were_promised_their_first_token_before(monkeypatch):
    asked = replace(overload.scenario(11, 3.2), duration=17.0)

    def late():
        firsts = [each.history.ttft for each in Simulation(asked).run().ledger.requests]
        return sum(first > asked.targets.ttft for first in firsts if first is not None)

    held = late()
    monkeypatch.setattr(TtftCommitments, "allows", lambda *_: True)
    assert 3 * held < late()


def test_work_for_clients_that_left_is_seen_where_nobody_stops_it():
    leaving = chat(Poisson(40.0), client=Client(leave_share=0.5, leave_within=2.0))
    asked = world("leaving", leaving, duration=10.0)
    deaf = replace(asked, queues=replace(asked.queues, policy="fifo", policy_options={}))
    assert Simulation(deaf).run().ledger.after_leaving > 1_000
    assert Simulation(asked).run().ledger.after_leaving < 1_000


def test_one_that_was_refused_can_be_let_in_to_see_what_would_have_come_of_it():
    asked = replace(overload.scenario(0, 3.0), duration=15.0)
    refused = next(each for each in Simulation(asked).run().ledger.requests if each.history.outcome == "OVERLOADED")
    number = refused.history.number
    let_in = replace(asked, queues=replace(asked.queues, let_in=frozenset({f"{number}.1"})))
    assert Simulation(let_in).run().ledger.requests[number].history.outcome != "OVERLOADED"


class ForgetfulMesh(work_conservation.WatchedMesh):
    """Loses all credit for a while: workers run empty beside a line."""

    def to_shards(self, scheduler, effect):
        if not (isinstance(effect, GrantCredit) and 2.0 < self._events.now < 4.0):
            super().to_shards(scheduler, effect)


class SlowMesh(work_conservation.WatchedMesh):
    """Tells schedulers of a place that fell free only after a step or two, and look-ahead does not bridge that."""

    def released(self, worker, served):
        self._events.at(self._events.now + 0.05, super().released, worker, served)


@pytest.mark.parametrize(("mesh", "load"), [(ForgetfulMesh, 1.0), (SlowMesh, 3.0)])
def test_an_engine_that_idles_beside_a_waiting_ticket_is_seen(mesh, load):
    found = []

    def new_mesh(scenario, events):
        found.append(mesh(scenario, events))
        return found[-1]

    Simulation(world("idle", chat(Poisson(16.0)), policy="fair", duration=6.0, load=load), new_mesh).run()
    assert found[0].idle > 0


def test_an_engine_whose_room_was_taken_in_the_step_that_made_other_room_is_not_idle():
    """Seed 0 has such steps, with others waiting for long."""
    found = work_conservation.watched(0)
    assert found.crowded > 1_000
    assert found.idle == 0


def test_short_prompts_beside_long_ones_wait_no_longer_than_is_promised():
    run = neighbour.seen(0, ("short", "long"))
    firsts = [each.history.ttft for each in run.ledger.requests if each.tenant.name == "short"]
    late = sum(first is None or first > neighbour.TTFT / 1e3 for first in firsts)
    assert len(firsts) > 300
    assert late <= len(firsts) / 100


@pytest.mark.parametrize("needed", [1, 2, 3, 7, 64, 65])
def test_a_plan_finds_the_fewest_workers_that_are_enough(needed):
    found = fewest(0.99, lambda count: Trial(1.0 if count >= needed else 0.5))
    assert found.workers == needed
    assert len(found.tried) <= 2 * needed.bit_length() + 1


def test_a_plan_gives_up_where_no_number_of_workers_is_enough():
    found = fewest(0.99, lambda _: Trial(0.5))
    assert found.workers is None
    assert max(found.tried) == MOST
