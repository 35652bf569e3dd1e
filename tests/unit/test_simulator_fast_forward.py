"""Fast forward gives the same results as single steps, with fewer events."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.simulator.mesh.mesh import SimMesh
from penstock.simulator.report.figures import figures_of
from penstock.simulator.scenario_file import scenario_of
from penstock.simulator.simulation import Simulation


class SteppedMesh(SimMesh):
    """Simulates each step as a separate event."""

    @property
    def observes_steps(self):
        return True


def world(*, rate, output, client=None, **fields):
    chat = {
        "name": "chat",
        "arrivals": {"rate": rate},
        "prompt": {"kind": "uniform", "low": 1, "high": 300},
        "output": {"kind": "uniform", "low": 1, "high": output},
        "client": client or {},
    }
    return scenario_of({"tenants": [chat], **fields})


def seen(run):
    """Return the transcripts and figures of a run, without its event counts."""
    figures = {name: value for name, value in figures_of(run).items() if name != "events"}
    return figures, [
        (each.transcript, each.attempts, each.predicted_wait, each.engine_tokens, each.cached_tokens)
        for each in run.ledger.requests
    ]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 999),
    rate=st.sampled_from([2.0, 10.0, 60.0]),
    workers=st.integers(1, 3),
    context=st.sampled_from([0.0, 0.002]),
    loses=st.booleans(),
)
@example(seed=435, rate=2.0, workers=1, context=0.0, loses=False)  # no request arrives
def test_fast_forward_gives_the_results_of_single_steps(seed, rate, workers, context, loses):
    scenario = world(
        rate=rate,
        output=150,
        client={"patience": 0.5, "leave_share": 0.3, "leave_within": 1.0, "retries": 1, "deadline": 3.0},
        seed=seed,
        duration=2.0,
        drain=3.0,
        workers=[{"count": workers, "slots": 8, "step_time": {"context_token_ms": context}}],
        schedulers={"count": 2},
        losses=[{"worker": 0, "at": 1.0, "returns_after": 0.5}] if loses else [],
    )
    assert seen(Simulation(scenario).run()) == seen(Simulation(scenario, SteppedMesh).run())


def test_fast_forward_keeps_the_order_of_workers_in_lockstep():
    """Their steps end at the same times, because all prompts and answers are equal."""
    like = {"arrivals": {"kind": "regular", "rate": 10.0}, "prompt": {"tokens": 64}, "output": {"tokens": 40}}
    tenants = [{"name": name, **like} for name in "abc"]
    scenario = scenario_of({"tenants": tenants, "duration": 2.0, "workers": [{"count": 3, "slots": 8}]})
    assert seen(Simulation(scenario).run()) == seen(Simulation(scenario, SteppedMesh).run())


def test_a_single_answer_costs_an_event_per_report_instead_of_per_step():
    scenario = world(rate=1.0, output=2_000, seed=4, duration=1.0, workers=[{"slots": 4}])
    one_by_one, fast = Simulation(scenario, SteppedMesh).run(), Simulation(scenario).run()
    steps = fast.worker_lives[0].totals.steps
    assert steps > 500
    assert fast.events.events_run < one_by_one.events.events_run - steps / 2


def test_events_per_request_do_not_grow_with_the_load():
    """Its own frames, and its share of the periodic frames; the share falls with the number of requests."""

    def each(rate):
        run = Simulation(world(rate=rate, output=100, seed=1, duration=5.0, workers=[{"slots": 16}])).run()
        return run.events.events_run / len(run.ledger.requests)

    assert each(20.0) < 28
    assert each(200.0) < 7
