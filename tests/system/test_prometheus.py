"""A real Prometheus scrapes a whole mesh: its sums are those of the load generator, and every tier has its series."""

import math
import runpy
from collections import Counter

import pytest

from mesh import completed_batch, running_mesh
from otlp_receiver import otlp_receiver
from paths import REPO
from penstock.bench.drivers.driver import open_driver
from penstock.bench.load import BenchLoad, LengthRange
from penstock.bench.run import offer_load
from penstock.proofs.testbed.logs import read_events
from prometheus import needs_prometheus, running_prometheus

pytestmark = needs_prometheus

TIERS = runpy.run_path(str(REPO / "tools" / "gen_metric_docs"))["TIERS"]
SLOTS, MAX_DEPTH = 4, 100
REQUESTS = "sum(penstock_edge_requests_total)"
WAIT_P95 = "histogram_quantile(0.95, sum by (le) (penstock_queue_wait_seconds_bucket))"
# Series that a mesh has only after a fault, with a setting that this mesh lacks, or with a tier that it lacks.
CONDITIONAL = {
    *("penstock_edge_resumes_total", "penstock_edge_refused_calls_total", "penstock_auth_fallback_decisions_total"),
    *("penstock_cancel_acknowledged_seconds", "penstock_cancel_engine_latency_seconds"),
    *("penstock_cancel_wasted_tokens_total", "penstock_auth_refused_total", "penstock_auth_limit_refusals_total"),
    *("penstock_auth_shadow_refusals_total", "penstock_auth_quota_used_ratio", "penstock_auth_key_sets_stale"),
    *("penstock_auth_key_set_failures_total", "penstock_auth_partition_changes_total"),
    *("penstock_auth_region_streams", "penstock_auth_refused_joins_total", "penstock_auth_home_unfollowed_seconds"),
    *("penstock_auth_home_catalog_unknown", "penstock_auth_shares", "penstock_auth_share_changes_total"),
    *("penstock_auth_excess_claims_total", "penstock_auth_refused_usage_total", "penstock_auth_usage_lag_seconds"),
    *("penstock_edge_spill_offers_total", "penstock_edge_spilled", "penstock_edge_guest_offers_total"),
    *("penstock_scheduler_declines_total", "http_server_request_duration_seconds", "rpc_server_call_duration_seconds"),
}


async def offer_burst(mesh, requests):
    """Send `requests` at once; return the number of each outcome."""
    length = LengthRange(low=12, high=12)
    load = BenchLoad(requests=requests, concurrency=requests, prompt_lengths=length, output_lengths=length)
    addresses = [each.address for each in mesh.plan.processes_of("edge")]
    async with open_driver("grpc", addresses, mesh.api_key) as driver:
        transcripts = await offer_load(load, driver, lambda _: None)
    return Counter(each.outcome for each in transcripts)


async def check_sums(mesh, prometheus):
    """Two bursts, of which the second exceeds the queue."""
    outcomes = await offer_burst(mesh, 60)
    assert outcomes == {"ok": 60}
    at = await prometheus.scraped()
    assert await prometheus.value(REQUESTS, at) == 60
    waits = sorted(line["queue_s"] for line in read_events(mesh.folder, "edge", "ticket_done"))
    assert await prometheus.value(WAIT_P95, at) == pytest.approx(waits[math.ceil(0.95 * len(waits)) - 1], rel=0.1)
    outcomes += await offer_burst(mesh, 200)
    at = await prometheus.scraped()
    assert outcomes["QUEUE_FULL"] > 0
    assert await prometheus.value(REQUESTS, at) == outcomes.total() == 260
    assert await prometheus.value(f'{REQUESTS[:-1]}{{outcome="stop"}})', at) == 0
    assert await prometheus.value(f'{REQUESTS[:-1]}{{outcome="length"}})', at) == outcomes["ok"]
    assert await prometheus.value(f'{REQUESTS[:-1]}{{reason="QUEUE_FULL"}})', at) == outcomes["QUEUE_FULL"]
    third = await offer_burst(mesh, 200)
    ended_at = await prometheus.scraped()
    assert await prometheus.value(REQUESTS, ended_at) - await prometheus.value(REQUESTS, at) == third.total()
    # The rate of series that exist since the first burst is that of the answers; Prometheus extrapolates it.
    window_s = math.ceil(ended_at - at)
    rate = f'sum(rate(penstock_edge_requests_total{{outcome="length"}}[{window_s}s]))'
    assert await prometheus.value(rate, ended_at) * window_s == pytest.approx(third["ok"], rel=0.25)
    return outcomes + third


async def check_owners(prometheus, outcomes):
    """Each event is counted once, by the tier that owns it."""
    for expression in (
        "sum(penstock_worker_runs_total)",
        "sum(penstock_queue_wait_seconds_count)",
        "sum(penstock_scheduler_placements_total)",
        "sum(gen_ai_server_time_to_first_token_seconds_count)",
    ):
        assert await prometheus.value(expression) == outcomes["ok"], expression
    for expression in ("sum(penstock_queue_shed_total)", 'sum(penstock_edge_rejected_total{tier="queue"})'):
        by_edge = await prometheus.value('sum(penstock_edge_rejected_total{tier="edge"})')
        assert await prometheus.value(expression) == outcomes["QUEUE_FULL"] - by_edge, expression
    output = await prometheus.value('sum(penstock_edge_tokens_total{type="output"})')
    assert output == 12 * outcomes["ok"] == await prometheus.value('sum(penstock_worker_tokens_total{type="decode"})')
    computed = await prometheus.value('sum(penstock_edge_tokens_total{type=~"input|cached_input"})')
    assert computed == await prometheus.value("sum(penstock_worker_prefix_query_tokens_total)")
    assert await prometheus.value("sum(penstock_scheduler_workers)") == 1
    assert await prometheus.value("sum(penstock_scheduler_slots)") == SLOTS
    assert await prometheus.value("sum(penstock_queue_depth)") == 0


async def check_tiers(prometheus):
    """Every process exports the series of its tier, and of no other one."""
    found = {each["metric"]["__name__"]: set() for each in await prometheus.query('{__name__!=""}')}
    for each in await prometheus.query('count by (__name__, job) ({__name__!=""})'):
        found[each["metric"]["__name__"]].add(each["metric"]["job"].rstrip("-12"))
    for tier, series in TIERS.items():
        for each in series:
            name = each.prometheus_name
            jobs = found.get(name) or found.get(f"{name}_count", set())
            if tier == "All tiers":
                assert jobs >= {"auth", "queue", "scheduler", "worker", "edge"} or name in CONDITIONAL, name
            elif tier not in ("Routing", "Picker"):  # which this mesh has not
                assert jobs == {tier.lower()} or (not jobs and name in CONDITIONAL), (name, jobs)


async def test_sums_of_a_mesh_are_those_of_the_load_generator_and_each_series_has_one_owner(tmp_path):
    settings = (f"PENSTOCK_WORKER_SLOTS={SLOTS}", f"PENSTOCK_QUEUE_MAX_DEPTH={MAX_DEPTH}")
    with otlp_receiver() as receiver:
        async with (
            running_mesh(
                workers=1, edges=2, batches=1, engine="sim", otlp=receiver.endpoint, settings=settings
            ) as mesh,
            running_prometheus(tmp_path, {each.name: each.metrics for each in mesh.plan.processes}) as prometheus,
        ):
            outcomes = await check_sums(mesh, prometheus)
            await check_owners(prometheus, outcomes)
            assert (await completed_batch(mesh)).lines.failed == 0
            await prometheus.scraped()
            await check_tiers(prometheus)
            exemplars = await prometheus.exemplars("gen_ai_server_request_duration_seconds_bucket")
            traces = {each["trace_id"] for each in read_events(mesh.folder, "edge", "ticket_done")}
            assert {each["labels"]["trace_id"] for each in exemplars} <= traces
            assert exemplars
