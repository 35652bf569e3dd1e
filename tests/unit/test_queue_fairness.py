"""The difference in service between tenants with real batches: the bound of VTC, and half of that of plain counters."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.queue.policies.factory import PolicyConfig
from penstock.scheduler.fleet import worker
from penstock.simulator.report.figures import figures_of
from penstock.simulator.scenario_file import scenario_of
from penstock.simulator.simulation import Simulation

BLOCK_TOKENS = 16  # tokens


def tenant(name, rate, *, prompt=256, output=256, **fields):
    lengths = {"prompt": {"tokens": prompt}, "output": {"tokens": output}}
    return {"name": name, "arrivals": {"kind": "regular", "rate": rate}, **lengths, **fields}


def figures(policy, tenants, *, kv_blocks=625, slots=19, shards=1, **fields):
    scenario = {
        "tenants": tenants,
        "workers": [{"kv_blocks": kv_blocks, "slots": slots}],
        "queues": {"policy": policy, "shards": shards},
        "schedulers": {"look_ahead": 0},
        "drain": 0.0,
        "seed": 1,
    }
    return figures_of(Simulation(scenario_of(scenario | fields)).run())


@pytest.mark.parametrize(
    ("tenants", "kv_blocks"),
    [
        ([tenant("steady", 12.0), tenant("rushed", 24.0)], 625),
        ([tenant("steady", 12.0, over_declare=4.0), tenant("rushed", 24.0, over_declare=4.0)], 2_500),
        ([tenant(f"tenant-{number}", 4.0 + 2 * number) for number in range(8)], 625),
    ],
    ids=["two tenants", "two that declare four times their output", "eight tenants"],
)
def test_the_service_of_tenants_differs_by_half_as_much_as_with_plain_counters(tenants, kv_blocks):
    plain, ours = (
        figures(policy, tenants, kv_blocks=kv_blocks, duration=60.0, sample_every=1.0) for policy in ("vtc", "fair")
    )
    assert ours["max_service_gap"] <= plain["max_service_gap"] / 2


def test_large_tickets_of_one_shard_are_not_starved_by_small_ones_of_another():
    tenants = [tenant("short", 12.0, prompt=64, output=512), tenant("long", 24.0, prompt=768, output=64)]
    found = figures("fair", tenants, shards=4, duration=40.0, sample_every=1.0)
    assert found["max_service_gap"] <= 5 * (64 + 2 * 512), "a few of the requests that run at once"


def test_the_next_tenant_is_chosen_by_up_to_date_service(monkeypatch):
    tenants = [tenant("short", 12.0, prompt=64, output=512), tenant("long", 24.0, prompt=768, output=64)]
    by_steps = figures("fair", tenants, duration=40.0, sample_every=1.0)
    monkeypatch.setattr(worker, "MIN_REPORTED_STEPS", 10**9)
    by_reports = figures("fair", tenants, duration=40.0, sample_every=1.0)
    assert by_steps["max_service_gap"] <= 0.75 * by_reports["max_service_gap"]


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(16, 600), st.integers(8, 300)), min_size=2, max_size=4),
    over_declare=st.sampled_from([1.0, 3.0]),
    slots=st.integers(2, 12),
    seed=st.integers(0, 99),
)
def test_backlogged_tenants_stay_within_the_bound_of_the_theorem(sizes, over_declare, slots, seed):
    """2 max(wp Lin, wq M) of Sheng et al., where M is the tokens of KV, plus the burst of a returning tenant."""
    tenants = [
        tenant(f"t{place}", 20.0, prompt=prompt, output=output, over_declare=over_declare)
        for place, (prompt, output) in enumerate(sizes)
    ]
    kv_blocks = 250
    found = figures("fair", tenants, kv_blocks=kv_blocks, slots=slots, duration=6.0, engine="exact", seed=seed)
    longest = max(prompt for prompt, _ in sizes)
    assert found["max_service_gap"] <= 2 * max(longest, 2 * kv_blocks * BLOCK_TOKENS) + PolicyConfig().burst_tokens
