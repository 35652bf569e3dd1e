"""Proofs under virtual time detect violations, and their figures follow their definitions."""

from dataclasses import replace

import pytest

from penstock.bench.transcript import OK, Transcript
from penstock.proofs.simulated import bursts, fairness, neighbour, overload, prefixes, work_conservation
from penstock.proofs.simulated.overload import GOODPUT_KEYS, LoadSweep
from penstock.proofs.simulated.recovery import BURST_END_S, recovery_time
from penstock.proofs.simulated.scenarios import chat_tenant, proof_scenario
from penstock.queue.admission.admission import Admission
from penstock.scheduler.effects import GrantCredit
from penstock.simulator.capacity_plan import MAX_WORKERS, CapacityTrial, fewest_workers
from penstock.simulator.scenario import ClientBehavior
from penstock.simulator.simulation import Simulation
from penstock.simulator.traffic.arrivals import Poisson


def history(started, outcome=OK):
    found = Transcript(0, started)
    found.end(started + 1, outcome)
    return found


def test_a_share_of_the_peak_is_of_the_same_seeds_peak_around_the_knee():
    kind = GOODPUT_KEYS["tokens"]
    sweep = LoadSweep({1.0: [{kind: 100}, {kind: 10}], 3.0: [{kind: 50}, {kind: 12}], 10.0: [{kind: 400}, {kind: 1}]})
    assert sweep.percent_of_peak(3.0, "tokens") == [50, 120]


def test_a_quiet_tenant_is_judged_by_the_requests_of_all_seeds():
    answered, judged, usual, worst = fairness.quiet_lines([[1.0] * 100, [1.2] * 100], [[1.0] * 100, [0.9] * 100])
    assert (answered.measured, answered.is_met) == (0, True)
    assert (judged.measured, judged.goal) == (pytest.approx(1.2), "<= 1.25")
    assert (usual.measured, worst.measured) == (pytest.approx((1.0 + 1.2 / 0.9) / 2), pytest.approx(1.2 / 0.9))


def test_rejections_of_a_quiet_tenant_miss_the_goal_although_its_ttft_is_short():
    answered = fairness.quiet_lines([[1.0] * 98], [[1.0] * 100])[0]
    assert (answered.measured, answered.is_met) == (pytest.approx(2), False)


def test_the_recovery_time_ends_after_the_last_failure():
    calm = [history(BURST_END_S + second / 2) for second in range(60)]
    assert recovery_time(calm) == 0
    relapse = [history(BURST_END_S + 7.2, "OVERLOADED")]
    assert recovery_time([*calm, *relapse]) == 8, "one in eleven fails wherever it is among them"
    assert recovery_time([history(each.started_at, "OVERLOADED") for each in calm]) == 25


def test_noise_makes_no_declaration_smaller_than_the_answer():
    noisy = chat_tenant(Poisson(20.0), over_declare=2.5, declare_noise=0.6)
    requests = Simulation(proof_scenario("noise", noisy, duration=5.0)).run().ledger.requests
    multiples = [each.max_output_tokens / each.output_tokens for each in requests]
    assert min(multiples) >= 1.0
    assert max(multiples) > 3.5
    assert min(multiples) < 1.5


def test_short_prompts_of_a_burst_delay_no_first_token_that_was_promised_before(monkeypatch):
    worlds = [replace(overload.overload_scenario(seed, 3.2), duration=17.0) for seed in (1, 3)]

    def late():
        firsts = [each.transcript.ttft for asked in worlds for each in Simulation(asked).run().ledger.requests]
        return sum(first > worlds[0].targets.ttft for first in firsts if first is not None)

    held = late()
    monkeypatch.setattr(Admission, "_keeps_commitments", lambda *_: True)
    assert 3 * held < late()


@pytest.mark.parametrize(("workers", "load", "seconds"), [(1, 3.0, 400.0), (8, 6.0, 150.0)])
def test_admitted_long_prompts_of_a_burst_are_in_time(workers, load, seconds):
    """With a prediction from the mean backlog of all workers, 3 % of them are late."""
    worlds = [replace(bursts.burst_scenario(seed, load, workers), duration=seconds) for seed in range(2)]
    found = [bursts.simulate(each) for each in worlds]
    admitted = sum(each.admitted for each in found)
    assert admitted > 300
    assert sum(each.late for each in found) <= admitted / 100


def test_work_for_clients_that_left_is_counted_if_it_is_not_cancelled():
    leaving = chat_tenant(Poisson(40.0), client=ClientBehavior(leave_share=0.5, leave_within=2.0))
    asked = proof_scenario("leaving", leaving, duration=10.0)
    deaf = replace(asked, queues=replace(asked.queues, policy="fifo", policy_options={}))
    assert Simulation(deaf).run().ledger.abandoned_tokens > 1_000
    assert Simulation(asked).run().ledger.abandoned_tokens < 1_000


def test_a_rejected_request_can_be_replayed_as_admitted():
    asked = replace(overload.overload_scenario(0, 3.0), duration=15.0)
    refused = next(each for each in Simulation(asked).run().ledger.requests if each.transcript.outcome == "OVERLOADED")
    number = refused.transcript.number
    exempt = replace(asked, queues=replace(asked.queues, exempt_tickets=frozenset({f"{number}.1"})))
    assert Simulation(exempt).run().ledger.requests[number].transcript.outcome != "OVERLOADED"


class ForgetfulMesh(work_conservation.ObservedMesh):
    """Loses all credit for a while, so that workers are idle while tickets wait."""

    def send_to_shards(self, scheduler, effect):
        if not (isinstance(effect, GrantCredit) and 2.0 < self._events.now < 4.0):
            super().send_to_shards(scheduler, effect)


class SlowMesh(work_conservation.ObservedMesh):
    """Reports a free slot to schedulers only after a step or two, which look-ahead does not bridge."""

    def send_released(self, worker, served):
        self._events.schedule(self._events.now + 0.05, super().send_released, worker, served)


@pytest.mark.parametrize(("mesh", "load"), [(ForgetfulMesh, 1.0), (SlowMesh, 3.0)])
def test_an_engine_that_idles_beside_a_waiting_ticket_is_seen(mesh, load):
    found = []

    def new_mesh(scenario, events):
        found.append(mesh(scenario, events))
        return found[-1]

    Simulation(
        proof_scenario("idle", chat_tenant(Poisson(16.0)), policy="fair", duration=6.0, load=load), new_mesh
    ).run()
    assert found[0].idle_steps > 0


def test_an_engine_whose_room_was_taken_in_the_step_that_made_other_room_is_not_idle():
    """Seed 0 has such steps while other tickets wait."""
    found = work_conservation.simulate_observed(0)
    assert found.steps_with_waiting > 1_000
    assert found.idle_steps == 0


def test_short_prompts_beside_long_ones_wait_no_longer_than_is_promised():
    run = neighbour.simulate(0, ("short", "long"))
    firsts = [each.transcript.ttft for each in run.ledger.requests if each.tenant.name == "short"]
    late = sum(first is None or first > neighbour.MAX_P99_TTFT_MS / 1e3 for first in firsts)
    assert len(firsts) > 300
    assert late <= len(firsts) / 100


def test_agents_find_their_prompts_in_caches_unless_tickets_name_no_prefixes():
    placed, blind = (prefixes.simulate(0, places_by_prefix=each) for each in (True, False))
    shared = placed["prefix_cache"]["shared_lru_share"]
    assert placed["prefix_cache"]["hit_share"] >= prefixes.MIN_FOUND_PERCENT / 100 * shared
    assert blind["prefix_cache"]["hit_share"] < 0.75 * shared
    assert placed["goodput_requests_per_s"] >= prefixes.MIN_GOODPUT_PERCENT / 100 * blind["goodput_requests_per_s"]


@pytest.mark.parametrize("needed", [1, 2, 3, 7, 64, 65])
def test_a_plan_finds_the_fewest_workers_that_are_enough(needed):
    found = fewest_workers(0.99, lambda count: CapacityTrial(1.0 if count >= needed else 0.5))
    assert found.workers == needed
    assert len(found.trials) <= 2 * needed.bit_length() + 1


def test_a_plan_gives_up_where_no_number_of_workers_is_enough():
    found = fewest_workers(0.99, lambda _: CapacityTrial(0.5))
    assert found.workers is None
    assert max(found.trials) == MAX_WORKERS
