"""Proofs under virtual time detect violations, and their figures follow their definitions."""

from dataclasses import replace

import pytest

from penstock.bench.transcript import OK, Transcript
from penstock.proofs.simulated import bursts, fairness, fleet, neighbour, overload, prefixes, work_conservation
from penstock.proofs.simulated.fleet_cells import CHAT, LONG, SHORT, Cell, bounded_fifo_scenario, fleet_scenario
from penstock.proofs.simulated.overload import GOODPUT_KEYS, ComparedRejections, LoadSweep, Rejections
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
    history_without_failures = [history(BURST_END_S + second / 2) for second in range(60)]
    assert recovery_time(history_without_failures) == 0
    late_failure = [history(BURST_END_S + 7.2, "OVERLOADED")]
    assert recovery_time([*history_without_failures, *late_failure]) == 8, (
        "one in eleven fails wherever it is among them"
    )
    assert recovery_time([history(each.started_at, "OVERLOADED") for each in history_without_failures]) == 25


def test_noise_makes_no_declaration_smaller_than_the_answer():
    noisy = chat_tenant(Poisson(20.0), over_declare=2.5, declare_noise=0.6)
    requests = Simulation(proof_scenario("noise", noisy, duration=5.0)).run().ledger.requests
    multiples = [each.max_output_tokens / each.output_tokens for each in requests]
    assert min(multiples) >= 1.0
    assert max(multiples) > 3.5
    assert min(multiples) < 1.5


def test_short_prompts_of_a_burst_break_no_earlier_ttft_commitment(monkeypatch):
    worlds = [replace(overload.overload_scenario(seed, 3.2), duration=17.0) for seed in (1, 3)]

    def count_late():
        ttfts = [each.transcript.ttft for scenario in worlds for each in Simulation(scenario).run().ledger.requests]
        return sum(ttft > worlds[0].targets.ttft for ttft in ttfts if ttft is not None)

    late_requests = count_late()
    monkeypatch.setattr(Admission, "_keeps_commitments", lambda *_: True)
    assert 3 * late_requests < count_late()


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
    scenario = proof_scenario("leaving", leaving, duration=10.0)
    without_cancels = replace(scenario, queues=replace(scenario.queues, policy="fifo", policy_options={}))
    assert Simulation(without_cancels).run().ledger.abandoned_tokens > 1_000
    assert Simulation(scenario).run().ledger.abandoned_tokens < 1_000


def test_a_rejected_request_can_be_replayed_as_admitted():
    scenario = replace(overload.overload_scenario(0, 3.0), duration=15.0)
    rejected = next(
        each for each in Simulation(scenario).run().ledger.requests if each.transcript.outcome == "OVERLOADED"
    )
    number = rejected.transcript.number
    exempt = replace(scenario, queues=replace(scenario.queues, exempt_tickets=frozenset({f"{number}.1"})))
    assert Simulation(exempt).run().ledger.requests[number].transcript.outcome != "OVERLOADED"


class CreditLosingMesh(work_conservation.ObservedMesh):
    """Loses all credit for a while, so that workers are idle while tickets wait."""

    def send_to_shards(self, scheduler, effect):
        if not (isinstance(effect, GrantCredit) and 2.0 < self._events.now < 4.0):
            super().send_to_shards(scheduler, effect)


class SlowMesh(work_conservation.ObservedMesh):
    """Reports a free slot to schedulers only after a step or two, which look-ahead does not bridge."""

    def send_released(self, worker, served, steps):
        self._events.schedule(self._events.now + 0.05, super().send_released, worker, served, steps)


@pytest.mark.parametrize(("mesh", "load"), [(CreditLosingMesh, 1.0), (SlowMesh, 3.0)])
def test_an_engine_that_idles_while_a_ticket_waits_is_counted(mesh, load):
    found = []

    def new_mesh(scenario, events):
        found.append(mesh(scenario, events))
        return found[-1]

    Simulation(
        proof_scenario("idle", chat_tenant(Poisson(16.0)), policy="fair", duration=6.0, load=load), new_mesh
    ).run()
    assert found[0].idle_steps > 0


def test_an_engine_whose_free_slots_are_used_in_the_same_step_is_not_idle():
    """Seed 0 has such steps while other tickets wait."""
    found = work_conservation.simulate_observed(0)
    assert found.steps_with_waiting > 1_000
    assert found.idle_steps == 0


def test_short_prompts_among_long_ones_wait_no_longer_than_their_target():
    run = neighbour.simulate(0, ("short", "long"))
    ttfts = [each.transcript.ttft for each in run.ledger.requests if each.tenant.name == "short"]
    count_late = sum(ttft is None or ttft > neighbour.MAX_P99_TTFT_MS / 1e3 for ttft in ttfts)
    assert len(ttfts) > 300
    assert count_late <= len(ttfts) / 100


@pytest.mark.parametrize("cell", [prefixes.Cell("agents", 6, 1.0, 0.5), prefixes.Cell("conversations", 6, 2.4)])
def test_prompts_are_found_in_caches_unless_tickets_name_no_prefixes(cell):
    found = prefixes.compare(cell, seed=0)
    assert found.found >= prefixes.MIN_FOUND_PERCENT
    assert found.found_by_load < 75
    assert found.goodput >= prefixes.MIN_GOODPUT_PERCENT
    assert found.shared_share >= prefixes.MIN_SHARED_SHARE
    assert found.found_of_clairvoyant <= 100


@pytest.mark.parametrize("needed", [1, 2, 3, 7, 64, 65])
def test_a_plan_finds_the_fewest_workers_that_suffice(needed):
    found = fewest_workers(0.99, lambda count: CapacityTrial(1.0 if count >= needed else 0.5))
    assert found.workers == needed
    assert len(found.trials) <= 2 * needed.bit_length() + 1


def test_a_plan_ends_without_a_solution_if_no_number_of_workers_suffices():
    found = fewest_workers(0.99, lambda _: CapacityTrial(0.5))
    assert found.workers is None
    assert max(found.trials) == MAX_WORKERS


def test_a_fleet_under_overload_serves_as_many_requests_per_worker_as_one_worker():
    """Eight workers served half as many when a prompt was counted as if it delayed the prompts of every worker."""
    served = []
    for workers in (1, 8):
        found = overload.simulate(replace(fleet_scenario(Cell(workers), seed=0, load=10.0), duration=14.0))
        assert found["late_share"] <= 0.015
        served.append(found[GOODPUT_KEYS["requests"]] / workers)
    assert served[1] > 0.85 * served[0]


def test_a_cell_of_a_fleet_is_compared_with_its_own_peak():
    both = dict.fromkeys(GOODPUT_KEYS.values(), 100.0) | {"first_tokens": 100, "late": 0}
    half = dict.fromkeys(GOODPUT_KEYS.values(), 50.0) | {"first_tokens": 100, "late": 2}
    bounded = both | {"rejections": ComparedRejections(Rejections(100, 100.0), Rejections(120, 94.0))}
    sweep = LoadSweep({1.0: [both], 1.5: [both], 3.0: [bounded], 10.0: [half]})
    lines = fleet.cell_lines(Cell(8), sweep)
    assert lines[0].measured == 100.0 / 8
    assert [line.is_met for line in lines[1:]] == [True, True, True, False, False, False, False, True]
    assert fleet.fifo_line(Cell(8), sweep, [half, both | {GOODPUT_KEYS["tokens"]: 70.0}]).measured == 70.0


def test_the_cells_of_a_fleet_cover_its_sizes_shards_tenants_and_prompt_lengths():
    assert {1, 4, 8, 32, 128} <= {cell.workers for cell in fleet.CELLS}
    assert {1, 8} <= {cell.shards for cell in fleet.CELLS}
    assert {1, 16} <= {cell.tenants for cell in fleet.CELLS}
    assert {CHAT, SHORT, LONG} == {cell.prompts for cell in fleet.CELLS}
    for prompts in (SHORT, LONG):
        cells = [cell for cell in fleet.CELLS if cell.prompts == prompts]
        assert len({cell.workers for cell in cells if cell.shards > 1}) > 1


def test_shares_of_a_cell_are_those_of_all_seeds_together():
    runs = [{"first_tokens": 100, "late": 3}, {"first_tokens": 900, "late": 2}]
    assert fleet.late_percent(runs) == 0.5
    pairs = [(Rejections(100, 10.0), Rejections(90, 10.0)), (Rejections(300, 30.0), Rejections(310, 28.0))]
    compared = [{"rejections": ComparedRejections(*pair)} for pair in pairs]
    assert [fleet.excess_percent(compared, kind) for kind in ("requests", "tokens")] == [0.0, 5.0]


@pytest.mark.parametrize("cell", [Cell(4, tenants=2), Cell(2, prompts=SHORT), Cell(4, prompts=LONG)], ids=str)
def test_a_cell_offers_each_worker_what_fifo_serves(cell):
    world = fleet_scenario(cell, seed=0, load=1.0)
    arrivals = sum(each.demand.arrivals.rate for each in world.tenants)
    assert (arrivals, world.worker_count) == (pytest.approx(cell.workers * cell.kind.fifo_capacity_rps), cell.workers)
    assert world.targets.ttft == cell.kind.ttft_target
    found = overload.simulate(replace(world, queues=replace(world.queues, policy="fifo"), duration=40.0))
    assert found["late_share"] < 0.1
    assert bounded_fifo_scenario(cell, 0, 10.0, 0.5).queues.max_depth == round(0.5 * arrivals)


def test_rejections_of_a_fleet_are_compared_with_those_of_a_clairvoyant_of_a_part_of_it():
    figures = fleet.simulate_cell(replace(fleet_scenario(Cell(8), seed=0, load=3.0), duration=11.0))
    assert figures["rejections"].ours.requests > 100
    excess = [fleet.excess_percent([figures], kind) for kind in GOODPUT_KEYS]
    assert max(excess) < overload.MAX_EXCESS_REJECTIONS_PERCENT
    rejects_all = replace(fleet_scenario(Cell(4), seed=0, load=1.0), duration=10.0)
    rejects_all = replace(rejects_all, queues=replace(rejects_all.queues, policy_options={"ttft_headroom": 0.02}))
    assert overload.excess_rejections(Simulation(rejects_all).run())[1] > 50
