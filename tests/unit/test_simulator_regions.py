"""Several regions under virtual time: one answers what another rejects, and its clients if that one is lost."""

from dataclasses import replace
from random import Random

import pytest
from click.testing import CliRunner

from penstock.bench.report import Slo
from penstock.bench.transcript import OK
from penstock.cli.commands.measure import simulate
from penstock.simulator.errors import ScenarioError
from penstock.simulator.regions.figures import regions_figures
from penstock.simulator.regions.scenario import RegionLoss, RegionsScenario
from penstock.simulator.regions.scenario_file import regions_of
from penstock.simulator.regions.simulation import RegionsSimulation
from penstock.simulator.report.figures import meets_slo
from penstock.simulator.scenario import PRIORITIES, ClientBehavior, Scenario, SimTenant, WorkerKind
from penstock.simulator.traffic.arrivals import Diurnal, Poisson
from penstock.simulator.traffic.demand import SampledDemand, Uniform

FULL_RATE = 12.0  # requests/s of one worker
DURATION_S = 14.0
DELAY_S = 0.02
SLO = Slo(ttft=1.0, tpot=0.1)


def region(name, load, *, workers=1, seed=0, **client):
    demand = SampledDemand(Poisson(load * FULL_RATE * workers), Uniform(50, 400), Uniform(50, 150))
    tenant = SimTenant(
        name=f"{name}-chat", demand=demand, priority=PRIORITIES["interactive"], client=ClientBehavior(**client)
    )
    kind = WorkerKind(count=workers, slots=16)
    return Scenario(name=name, tenants=(tenant,), workers=(kind,), duration=DURATION_S, seed=seed)


def run_regions(*regions, **fields):
    return RegionsSimulation(RegionsScenario(name="test", regions=regions, delay=DELAY_S, **fields)).run()


def requests_of(run, name):
    return run.regions[name].ledger.client_requests


def good_share(run, name):
    requests = requests_of(run, name)
    return sum(meets_slo(each, SLO) for each in requests) / len(requests)


def test_a_region_that_has_free_capacity_keeps_its_requests():
    run = run_regions(region("eu", 0.5), region("us", 0.5, seed=1))
    assert not any(each.is_away for name in run.regions for each in requests_of(run, name))
    assert all(each.offered == 0 for each in run.borders.values())


def test_each_region_is_sampled_at_its_own_interval():
    fine, coarse = (replace(region(name, 0.2), sample_every=every) for name, every in (("eu", 0.2), ("us", 0.5)))
    run = run_regions(coarse, fine)
    for name, every in (("eu", 0.2), ("us", 0.5)):
        times = run.regions[name].depth_samples.times
        assert times == [(number + 1) * every for number in range(len(times))]
        assert times[-1] > DURATION_S - 1.0


def test_what_a_region_rejects_is_answered_by_one_that_has_free_capacity():
    overloaded, idle = region("eu", 2.0), region("us", 0.3, workers=3, seed=1)
    alone, spilling = run_regions(overloaded, idle, spills=False), run_regions(overloaded, idle)
    assert good_share(alone, "eu") < 0.75
    assert good_share(spilling, "eu") > good_share(alone, "eu") + 0.15
    assert good_share(spilling, "us") >= good_share(alone, "us") - 0.02  # guests come last
    assert not any(each.is_away for each in requests_of(spilling, "us"))
    first_tokens = [
        each.transcript.ttft for each in requests_of(spilling, "eu") if each.is_away and not each.attempts > 1
    ]
    assert min(first_tokens) > 2 * DELAY_S


def test_two_full_regions_exchange_few_requests():
    run = run_regions(region("eu", 1.0), region("us", 1.0, seed=1))
    assert regions_figures(run)["away_share"] < 0.05


@pytest.mark.parametrize("client", [{}, {"patience": 0.5, "retries": 2}, {"deadline": 2.0}, {"leave_share": 0.5}])
def test_each_request_ends_once_in_whatever_region(client):
    run = run_regions(region("eu", 2.0, **client), region("us", 0.3, workers=2, seed=1, **client))
    for name in run.regions:
        assert all(each.has_ended for each in requests_of(run, name))
        assert run.regions[name].mesh.edge.open_requests == 0
        answered = [each for each in requests_of(run, name) if each.transcript.outcome == OK]
        assert all(each.transcript.tokens == each.output_tokens for each in answered)


def test_the_clients_of_a_lost_region_resume_in_the_next_one_and_return():
    lost = RegionLoss(region="eu", lost_at=8.0, returns_after=4.0)
    run = run_regions(region("eu", 0.4), region("us", 0.2, workers=2, seed=1), losses=(lost,))
    requests = requests_of(run, "eu")
    assert all(each.transcript.outcome == OK for each in requests)
    assert all(each.transcript.tokens == each.output_tokens for each in requests)
    during = [each for each in requests if 8.0 < each.transcript.started_at < 12.0]
    assert during
    assert all(each.region == "us" for each in during)
    after = [each for each in requests if each.transcript.started_at > 12.0]
    assert all(each.region == "eu" for each in after)


def test_a_simulation_replays_exactly():
    regions = region("eu", 2.0), region("us", 0.3, seed=1)
    assert regions_figures(run_regions(*regions)) == regions_figures(run_regions(*regions))


def test_the_rate_of_a_day_follows_its_wave():
    process = Diurnal(rate=50.0, period_s=40.0, amplitude=0.8, peak_at=10.0)
    times = []
    for at in process.times(Random(1), 1.0):
        if at >= 400.0:
            break
        times.append(at)
    assert len(times) == pytest.approx(400 * 50, rel=0.03)
    peak = sum(abs(at % 40.0 - 10.0) < 2.0 for at in times)
    assert peak == pytest.approx(10 * 4 * 50 * 1.8, rel=0.1)


WORKLOAD = {
    "name": "chat",
    "arrivals": {"rate": 5.0},
    "prompt": {"tokens": 50},
    "output": {"tokens": 20},
}


def scenario_values(**fields):
    regions = [{"name": "eu", "tenants": [WORKLOAD]}, {"name": "us", "tenants": [WORKLOAD], "duration": 5.0}]
    return {"duration": 3.0, "seed": 7, "regions": regions, **fields}


def test_a_field_outside_of_the_regions_holds_for_each():
    scenario = regions_of(scenario_values(region_delay_ms=35.0, region_losses=[{"region": "us", "at": 1.0}]))
    assert [(each.name, each.duration, each.seed) for each in scenario.regions] == [("eu", 3.0, 7), ("us", 5.0, 8)]
    assert scenario.delay == pytest.approx(0.035)
    assert scenario.losses == (RegionLoss(region="us", lost_at=1.0),)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"regions": [{"name": "eu", "tenants": [WORKLOAD]}]}, "regions: must be a list of at least two tables"),
        ({"regions": [{"name": "eu", "tenants": [WORKLOAD]}] * 2}, "regions: has the name 'eu' twice"),
        ({"regions": [{"name": "eu", "tenants": []}, {"name": "us"}]}, r"regions\[0\].tenants: is missing"),
        ({"region_losses": [{"region": "ap", "at": 1.0}]}, r"region_losses\[0\].region: must be one of eu, us"),
        ({"delay": 3.0}, r"regions\[0\].delay: is unknown"),
    ],
)
def test_a_wrong_field_is_named_with_its_region(fields, text):
    with pytest.raises(ScenarioError, match=text):
        regions_of(scenario_values(**fields))


def test_the_command_shows_each_region_and_writes_a_figure(tmp_path):
    path, figure = tmp_path / "two.toml", tmp_path / "two.svg"
    path.write_text(
        "\n".join(
            [
                "duration = 3.0",
                *(
                    f'[[regions]]\nname = "{name}"\n[[regions.tenants]]\nname = "chat"\narrivals = {{ rate = 5.0 }}\n'
                    "prompt = { tokens = 50 }\noutput = { tokens = 20 }"
                    for name in ("eu", "us")
                ),
            ]
        )
    )
    result = CliRunner().invoke(simulate, [str(path), "--plot", str(figure)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "100.0% of all requests within the SLO, 0.0% answered by another region" in result.stdout
    assert figure.stat().st_size > 0


def test_a_plan_is_refused_for_several_regions(tmp_path):
    path = tmp_path / "two.toml"
    tenant = 'name = "chat"\narrivals = { rate = 5.0 }\nprompt = { tokens = 50 }\noutput = { tokens = 20 }'
    path.write_text("\n".join(f'[[regions]]\nname = "{name}"\n[[regions.tenants]]\n{tenant}' for name in ("eu", "us")))
    result = CliRunner().invoke(simulate, [str(path), "--plan", "0.9"])
    assert result.exit_code == 2
    assert "a scenario of several regions and --plan exclude each other" in result.output
