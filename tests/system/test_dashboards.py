"""A real Prometheus scrapes a mesh under load: each query of each panel has data, and overload raises its alert."""

import asyncio
import math

from mesh import completed_batch, running_mesh
from monitoring.command import FOLDER
from monitoring.dashboards import DASHBOARDS
from penstock.bench.drivers.driver import open_driver
from penstock.bench.load import BenchLoad, LengthRange
from penstock.bench.run import offer_load
from prometheus import needs_prometheus, running_prometheus

pytestmark = needs_prometheus

SLOTS, MAX_DEPTH = 4, 60
FIRES_WITHIN_S = 180
# Quantiles need an event of their histogram; `$__rate_interval` is that of Grafana at a scrape interval of 1 s.
REGION_PANELS = ("Between regions", "Requests in other regions", "Regions", "Home region", "Unconfirmed usage")
VARIABLES = {"$__rate_interval": "1m", "$tenant": "default"}
FIRING = 'ALERTS{alertname="PenstockRequestsShed", alertstate="firing", severity="page"}'


async def offer(mesh, requests, concurrency):
    length = LengthRange(low=12, high=12)
    load = BenchLoad(requests=requests, concurrency=concurrency, prompt_lengths=length, output_lengths=length)
    addresses = [each.address for each in mesh.plan.processes_of("edge")]
    async with open_driver("grpc", addresses, mesh.api_key) as driver:
        await offer_load(load, driver, lambda _: None)


def is_shown(results):
    """Grafana shows a result with at least one number."""
    return any(not math.isnan(float(each["value"][1])) for each in results)


async def empty_queries(prometheus):
    """Return the queries without data, by dashboard and panel.

    The mesh has no proxies, hence no routing, there is no other region, and an endpoint picker is of no mesh.
    """
    empty = []
    for dashboard in (each for each in DASHBOARDS if each.uid not in ("penstock-routing", "penstock-picker")):
        for panel in (each for each in dashboard.panels if each.title not in REGION_PANELS):
            for expression in panel.queries.values():
                text = expression
                for name, value in VARIABLES.items():
                    text = text.replace(name, value)
                if not is_shown(await prometheus.query(text)):
                    empty.append((dashboard.uid, panel.title, text))
    return empty


async def test_every_panel_has_data_under_load_and_overload_raises_its_alert(tmp_path):
    settings = (f"PENSTOCK_WORKER_SLOTS={SLOTS}", f"PENSTOCK_QUEUE_MAX_DEPTH={MAX_DEPTH}")
    async with running_mesh(workers=1, edges=1, batches=1, engine="sim", settings=settings) as mesh:
        targets = {each.name: each.metrics for each in mesh.plan.processes}
        async with running_prometheus(tmp_path, targets, rules=FOLDER / "rules.yaml") as prometheus:
            await completed_batch(mesh)
            await offer(mesh, 60, 20)  # within the queue
            await prometheus.scraped()
            await completed_batch(mesh)
            await offer(mesh, 60, 20)  # a rate needs two scrapes of each series
            await prometheus.scraped()
            assert await empty_queries(prometheus) == []
            assert await prometheus.query(FIRING) == []
            async with asyncio.timeout(FIRES_WITHIN_S):
                while not await prometheus.query(FIRING):
                    await offer(mesh, 200, 200)
                    await asyncio.sleep(1)
