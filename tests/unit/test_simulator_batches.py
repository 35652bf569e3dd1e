"""Simulated batches: lines without arrivals, through the batch tier's own window and turns."""

import pytest

from penstock.batch.jobs.division import CHUNK_LINES
from penstock.batch.window.window import MIN_WAITING
from penstock.bench.transcript import OK
from penstock.simulator.errors import ScenarioError
from penstock.simulator.mesh import batch_replica
from penstock.simulator.report.figures import figures_of
from penstock.simulator.scenario import PRIORITIES
from penstock.simulator.scenario_file import scenario_of
from penstock.simulator.simulation import Simulation

LENGTHS = {"prompt": {"kind": "uniform", "low": 10, "high": 200}, "output": {"kind": "uniform", "low": 1, "high": 40}}
CHAT = {"name": "chat", "class": "interactive", "arrivals": {"rate": 4.0}, **LENGTHS}


def batch(lines, name="night", **backlog):
    return {"name": name, "backlog": {"lines": lines, **backlog}, **LENGTHS}


def world(*tenants, **fields):
    return scenario_of({"tenants": list(tenants), "seed": 1, "workers": [{"slots": 16}], **fields})


def finished(*tenants, **fields):
    return Simulation(world(*tenants, **fields)).run()


def rows(simulation):
    return {each["tenant"]: each for each in figures_of(simulation)["batches"]}


def test_each_line_is_answered_once_over_several_chunks():
    run = finished(batch(CHUNK_LINES + 44))
    lines = run.ledger.requests
    assert len(lines) == CHUNK_LINES + 44
    assert {each.transcript.outcome for each in lines} == {OK}
    night = rows(run)["night"]
    assert night["lines_done"] == night["lines"] == len(lines)
    assert night["input_tokens"] == sum(each.prompt_tokens for each in lines)
    assert night["output_tokens"] == sum(each.transcript.tokens for each in lines)
    assert night["is_in_time"]
    assert night["expected_end_s"] is None


def test_a_run_ends_with_its_last_batch():
    run = finished(batch(20, at=3.0), duration=1_000.0)
    assert rows(run)["night"]["ended_s"] > 3.0
    assert run.events.now < 20.0


def test_lines_enter_the_queue_by_the_window_and_not_all_at_once():
    run = finished(batch(5_000), duration=2.0, drain=0.0)
    depth = [each.get(PRIORITIES["batch"], 0) for each in run.depth_samples.depth]
    assert MIN_WAITING <= max(depth) < 500


def test_a_batch_that_cannot_end_in_time_has_a_late_forecast():
    run = finished(batch(5_000, window=30.0), duration=10.0)
    night = rows(run)["night"]
    assert 0 < night["lines_done"] < 5_000
    assert night["ended_s"] is None
    assert night["expected_end_s"] > night["expires_s"]
    assert not night["is_in_time"]


def test_a_batch_that_expires_starts_no_further_line_and_stops_those_that_run():
    run = finished(batch(5_000, window=5.0), duration=20.0)
    night = rows(run)["night"]
    assert night["ended_s"] is None
    assert not night["is_in_time"]
    assert max(each.submitted_at for each in run.ledger.requests) <= 5.0 + run.scenario.link_delay
    assert not any(worker.runs for worker in run.worker_lives)


def test_two_batches_share_the_fleet():
    run = finished(batch(2_000, "one"), batch(2_000, "other"), duration=5.0, drain=0.0)
    done = [each["lines_done"] for each in rows(run).values()]
    assert min(done) > 0.8 * max(done)


def test_a_line_that_the_queue_rejects_starts_again():
    busy = {**CHAT, "arrivals": {"rate": 60.0, "windows": [{"start": 3.0, "end": 99.0, "factor": 0.0}]}}
    run = finished(batch(60), busy, queues={"max_depth": 6}, duration=10.0)
    lines = [each for each in run.ledger.requests if each.tenant.backlog]
    assert {each.transcript.outcome for each in lines} == {OK}
    assert max(each.attempts for each in lines) > 1


def test_a_line_whose_worker_dies_continues_elsewhere():
    losses = [{"worker": 0, "at": 1.0, "returns_after": 1.0}]
    run = finished(batch(200), workers=[{"count": 2, "slots": 16}], losses=losses)
    lines = run.ledger.requests
    assert all(each.transcript.tokens == each.output_tokens for each in lines)
    assert rows(run)["night"]["lines_done"] == 200


def test_figures_of_requests_are_those_of_clients():
    run = finished(batch(200), CHAT, duration=10.0)
    figures = figures_of(run)
    clients = [each for each in run.ledger.requests if each.tenant.name == "chat"]
    assert figures["requests"] == len(clients) == len(run.ledger.client_requests)
    assert figures["first_tokens"] == len(clients)


@pytest.mark.parametrize("field", ["client", "arrivals"])
def test_a_batch_has_neither_clients_nor_arrivals(field):
    with pytest.raises(ScenarioError, match=field):
        world({**batch(3), field: {"rate": 1.0}})


def test_the_last_lines_of_a_late_batch_are_of_the_class_standard(monkeypatch):
    for name in ("CHUNK_LINES", "SPARE_LINES"):  # a small fleet would hold the lines of ten seconds otherwise
        monkeypatch.setattr(batch_replica, name, 8)
    run = finished(batch(5_000, window=60.0), duration=61.0, workers=[{"slots": 8}])
    raised = [each for each in run.ledger.requests if each.priority == PRIORITIES["standard"]]
    assert 0 < len(raised) < len(run.ledger.requests) / 5
    assert min(each.submitted_at for each in raised) >= 54.0


def test_a_backlog_fills_the_fleet_and_costs_requests_of_other_classes_little():
    prompt = {"kind": "lognormal", "mean": 400.0, "sigma": 0.7, "high": 4096}
    output = {"kind": "lognormal", "mean": 120.0, "sigma": 0.7, "high": 1024}
    chat = {**CHAT, "arrivals": {"rate": 8.0}, "prompt": prompt, "output": output}
    night = {**batch(100_000), "prompt": prompt, "output": output}
    settings = {"workers": [{"slots": 64}], "duration": 16.0, "warm_up": 6.0, "drain": 20.0}
    alone, beside = (finished(*tenants, **settings) for tenants in ([chat], [chat, night]))
    before, after = figures_of(alone), figures_of(beside)
    assert after["goodput_share"] >= 0.99 * before["goodput_share"]
    assert after["ttft_s"]["p50"] <= before["ttft_s"]["p50"] + 0.03, (
        "half a step of a batch that yields, and its decodes"
    )
    assert after["ttft_s"]["p99"] <= 1.3 * before["ttft_s"]["p99"]
    [worker] = beside.worker_lives
    assert worker.totals.busy_s >= 0.95 * settings["duration"]
    assert rows(beside)["night"]["lines_done"] > 100


def test_a_line_that_is_preempted_continues_after_its_tokens():
    chat = CHAT | {"arrivals": {"rate": 12.0}}
    run = finished(batch(600), chat, workers=[{"slots": 4}], duration=30.0)
    preempted = sum(each.dispatcher.preempted_lease_count for each in run.mesh.schedulers.values())
    assert preempted > 0
    lines = [each for each in run.ledger.requests if each.tenant.backlog]
    assert {each.transcript.outcome for each in run.ledger.requests} == {OK}
    assert sum(each.transcript.tokens for each in lines) == rows(run)["night"]["output_tokens"]
    assert not any(each.transcript.index_errors for each in lines)
