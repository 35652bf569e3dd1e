"""Part `overload`: a region with twice the load that it serves sends the rest away; at its capacity it sends nothing.

The other region has twice the workers: with equal sizes, 2.0 and 0.3 of the capacity of one region are more than two
serve. The capacity of each region is measured first, by tenants that allow no other region. The queue has its usual
rules; its target for the first token is that of the SLO.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from rich.console import Console

from penstock.bench.drivers.driver import NO_RETRIES
from penstock.bench.drivers.grpc import GrpcDriver
from penstock.bench.load import BenchRequest
from penstock.bench.report import Slo
from penstock.bench.run import run_closed_loop, send_at_times
from penstock.bench.statistics import quantile
from penstock.bench.transcript import OK, Transcript
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import CardLine, at_least, at_most, reported, residue_lines
from penstock.proofs.regions.charges import read_charges
from penstock.proofs.regions.judge import (
    RegionCharge,
    Window,
    WorkCount,
    idle_share,
    share_deviation,
    windows_of,
)
from penstock.proofs.regions.load import fixed_requests, random_requests
from penstock.proofs.regions.options import RegionsOptions
from penstock.proofs.regions.testbed import AWAY, HOME, PartResult, RegionsTestbed, open_regions, residue_of
from penstock.v1.admin_pb2 import Tenant

WORKERS = {HOME: 1, AWAY: 2}
SLOTS = 16  # of a worker
STEP_S = 0.05  # slow, so that the slots are the limit and not the cores of this machine
ANSWER_TOKENS = 32
SLO = Slo(ttft=5.0, tpot=0.2)
SETTINGS = (
    f"PENSTOCK_WORKER_SLOTS={SLOTS}",
    f"PENSTOCK_WORKER_SIM_BASE_S={STEP_S}",
    "PENSTOCK_WORKER_SIM_PER_PREFILL_TOKEN_S=0",
    "PENSTOCK_WORKER_SIM_PER_DECODE_SEQ_S=0",
    f"PENSTOCK_QUEUE_TTFT_STANDARD={SLO.ttft}",
)
SURPLUS, EVEN = "surplus", "even"  # tenants of the two loads
SURPLUS_LOAD = {HOME: 2.0, AWAY: 0.3}  # times the capacity of each region
EVEN_LOAD = {HOME: 0.95, AWAY: 0.95}
CLIENTS_PER_SLOT = 2  # of the closed loop that measures the capacity
MAX_SATURATING = 10_000  # requests
SATURATE_S, WARM_UP_S = 10.0, 15.0
MAX_EVEN_S = 60.0  # a longer run is for oscillations of the surplus
WINDOW_S = 5.0
MAX_LAG_S = 1.0  # by which requests may be sent too late, because this machine is busy
MIN_WORKER_SHARE = 0.85  # of the capacity of a worker in one region, of that in the other one
MIN_SLO_PERCENT = 95.0
MAX_IDLE_PERCENT = 2.0
MAX_DEVIATION_PERCENT = 10.0  # of the share that leaves, over windows; random arrivals alone cause 5 to 6
MAX_CROSSING_PERCENT = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedLoad:
    """What one load did, in the time that is judged."""

    begin: float  # Unix s, as the next
    end: float
    transcripts: Sequence[Transcript]
    work: WorkCount  # of HOME
    lag_s: float


async def overload(options: RegionsOptions, mesh: MeshOptions, console: Console) -> PartResult:
    async with open_regions(
        mesh, console, round_trip_s=options.round_trip_s, settings=SETTINGS, workers=WORKERS
    ) as testbed:
        await testbed.put_tenants([Tenant(tenant_id=only(name), allowed_regions=[name]) for name in WORKERS])
        await testbed.put_tenants([Tenant(tenant_id=each) for each in (SURPLUS, EVEN)])
        testbed.report_progress("overload: measuring the capacity of each region")
        saturated = dict(
            zip(WORKERS, await asyncio.gather(*(_saturate(testbed, each) for each in WORKERS)), strict=True)
        )
        rates = {name: each.tokens_per_s / ANSWER_TOKENS for name, each in saturated.items()}
        loads = _Loads(testbed, rates, options.seed)
        surplus = await loads.offer(SURPLUS, SURPLUS_LOAD, options.seconds)
        # The region was saturated here, too. Other work on this machine may have slowed the first measure.
        grown = max(1.0, _ratio(surplus.work, saturated[HOME]))
        loads = _Loads(testbed, {name: rate * grown for name, rate in rates.items()}, options.seed)
        even = await loads.offer(EVEN, EVEN_LOAD, min(MAX_EVEN_S, options.seconds))
        residue = await residue_of(testbed)
    charges = [each for folder in testbed.folders().values() for each in read_charges(folder)]
    at_home = read_charges(testbed.folders()[HOME])
    per_worker = [rates[name] / count for name, count in WORKERS.items()]
    result = PartResult(void_reason=capacity_void_reason(per_worker) or void_reason(surplus, even))
    result.lines += [reported(f"capacity of {name}, measured", rate, "requests/s") for name, rate in rates.items()]
    result.lines += surplus_lines(surplus, saturated[HOME], _windows(at_home, SURPLUS, surplus))
    result.lines += even_lines(even, saturated[HOME], _windows(charges, EVEN, even))
    result.lines += residue_lines(residue)
    result.notes += [f"{AWAY} has twice the workers of {HOME}: with equal sizes, 2.0 + 0.3 is more than both serve"]
    shares = ", ".join(f"{100 * each.share:.0f}" for each in _windows(at_home, SURPLUS, surplus))
    result.notes += [f"% that left in each window of {WINDOW_S:g} s: {shares}", *residue]
    return result


def only(region: str) -> str:
    """Return the tenant that allows one region alone."""
    return f"only-{region}"


async def _saturate(testbed: RegionsTestbed, region: str) -> WorkCount:
    """Return what the workers of a region do in a second when requests always wait."""
    clients = CLIENTS_PER_SLOT * SLOTS * WORKERS[region]
    stop = asyncio.Event()
    async with _driver(testbed, region, only(region)) as driver, asyncio.TaskGroup() as group:
        requests = _until(stop, fixed_requests(MAX_SATURATING, ANSWER_TOKENS, seed=0))

        async def send(request: BenchRequest) -> None:
            await driver.send(request, Transcript(request.number, time.monotonic()))

        group.create_task(run_closed_loop(clients, requests, send))
        await asyncio.sleep(SATURATE_S / 2)
        before = await _work(testbed, region)
        await asyncio.sleep(SATURATE_S)
        work = (await _work(testbed, region)).since(before)
        stop.set()
    return work


def _until(stop: asyncio.Event, requests: Sequence[BenchRequest]) -> Iterator[BenchRequest]:
    for each in requests:
        if stop.is_set():
            return
        yield each


@asynccontextmanager
async def _driver(testbed: RegionsTestbed, region: str, tenant_id: str) -> AsyncIterator[GrpcDriver]:
    """Yield a driver of one session at the proxy of a region, which repeats nothing."""
    async with testbed.client(region, tenant_id, retries=NO_RETRIES) as client, client.session() as session:
        yield GrpcDriver([session], time.monotonic)


async def _work(testbed: RegionsTestbed, region: str) -> WorkCount:
    workers = testbed.mesh(region).plan.processes_of("worker")
    figures = [await testbed.testbeds[region].figures_of(each.admin_address) for each in workers]
    return WorkCount(
        at=time.monotonic(),
        steps=sum(each["engine_steps"] for each in figures),
        tokens=sum(each["tokens_generated"] for each in figures),
        busy_s=sum(each["busy_seconds"] for each in figures),
        slots=SLOTS,
    )


@dataclass(frozen=True, slots=True)
class _Loads:
    """Offers loads to both regions, as multiples of their `rates` in requests/s."""

    testbed: RegionsTestbed
    rates: Mapping[str, float]
    seed: int

    async def offer(self, tenant_id: str, times: Mapping[str, float], seconds: float) -> OfferedLoad:
        """Send requests of a tenant for a time that is judged, after a warm-up."""
        transcripts: list[Transcript] = []
        lags: list[float] = []
        async with (
            _driver(self.testbed, HOME, tenant_id) as at_home,
            _driver(self.testbed, AWAY, tenant_id) as elsewhere,
            asyncio.TaskGroup() as group,
        ):
            offset, begin = time.time() - time.monotonic(), time.monotonic() + WARM_UP_S
            for number, (region, driver) in enumerate(((HOME, at_home), (AWAY, elsewhere))):
                rate = times[region] * self.rates[region]
                requests = random_requests(rate, WARM_UP_S + seconds, ANSWER_TOKENS, self.seed + number)
                send = partial(self._send, driver, transcripts, lags, begin - WARM_UP_S)
                group.create_task(send_at_times(requests, lambda request: request.send_at, send))
            await asyncio.sleep(WARM_UP_S)
            before = await _work(self.testbed, HOME)
            await asyncio.sleep(max(0.0, begin + seconds - time.monotonic()))
            work = (await _work(self.testbed, HOME)).since(before)
        end = begin + seconds
        judged = [each for each in transcripts if begin <= each.started_at < end]
        lag_s = quantile(lags, 0.99)
        return OfferedLoad(begin=begin + offset, end=end + offset, transcripts=judged, work=work, lag_s=lag_s)

    async def _send(
        self,
        driver: GrpcDriver,
        transcripts: list[Transcript],
        lags: list[float],
        began_at: float,
        request: BenchRequest,
    ) -> None:
        transcript = Transcript(request.number, time.monotonic())
        transcripts.append(transcript)
        lags.append(transcript.started_at - began_at - request.send_at)
        self.testbed.report_progress(f"overload: {len(transcripts)} requests sent")
        await driver.send(request, transcript)


def _windows(charges: Sequence[RegionCharge], tenant_id: str, load: OfferedLoad) -> list[Window]:
    own = (each for each in charges if each.entry.tenant_id == tenant_id)
    return windows_of(own, load.begin, load.end, WINDOW_S)


def capacity_void_reason(per_worker: Sequence[float]) -> str:
    """All workers are equal: if some served less, one had no work, and the loads are not the planned ones."""
    share = min(per_worker) / max(per_worker) if any(per_worker) else 0.0
    if share >= MIN_WORKER_SHARE:
        return ""
    return f"a worker of one region served only {share:.0%} of one of the other region when both were saturated"


def void_reason(*loads: OfferedLoad) -> str:
    lag = max(each.lag_s for each in loads)
    return f"the clients sent requests {lag:.1f} s too late, because this host is busy" if lag > MAX_LAG_S else ""


def _load_lines(of: str, load: OfferedLoad) -> list[CardLine]:
    done = [each for each in load.transcripts if each.outcome == OK]
    share = 100 * sum(map(SLO.is_met_by, load.transcripts)) / max(1, len(load.transcripts))
    goal = f"{of}: within the SLO (first token {SLO.ttft:g} s, {SLO.tpot:g} s for each further one)"
    return [
        reported(f"{of}: requests", len(load.transcripts)),
        reported(f"{of}: of them rejected", sum(each.code == "RESOURCE_EXHAUSTED" for each in load.transcripts)),
        at_least(goal, share, MIN_SLO_PERCENT, "%"),
        reported(f"{of}: P99 time to the first token", quantile([each.ttft or 0.0 for each in done], 0.99), "s"),
    ]


def surplus_lines(load: OfferedLoad, saturated: WorkCount, windows: Sequence[Window]) -> list[CardLine]:
    of, deviation = "2.0 and 0.3", 100 * share_deviation(windows)
    shares = [100 * each.share for each in windows]
    served = _ratio(load.work, saturated)
    return [
        *_load_lines(of, load),
        at_most(
            f"{of}: idle share of {HOME}'s capacity", 100 * idle_share(load.work, saturated), MAX_IDLE_PERCENT, "%"
        ),
        reported(f"{of}: load of {HOME}, times what it served meanwhile", SURPLUS_LOAD[HOME] / max(served, 1e-9)),
        reported(f"{of}: share that left {HOME}", _mean(shares), "%"),
        at_most(f"{of}: its standard deviation over {WINDOW_S:g} s", deviation, MAX_DEVIATION_PERCENT, "%"),
        reported(f"{of}: smallest share of a window", min(shares, default=0.0), "%"),
        reported(f"{of}: largest share of a window", max(shares, default=0.0), "%"),
    ]


def even_lines(load: OfferedLoad, saturated: WorkCount, windows: Sequence[Window]) -> list[CardLine]:
    of = f"{EVEN_LOAD[HOME]:g} each"
    served, away = sum(each.requests for each in windows), sum(each.away for each in windows)
    return [
        *_load_lines(of, load),
        reported(f"{of}: used share of {HOME}'s capacity", 100 * (1 - idle_share(load.work, saturated)), "%"),
        at_most(f"{of}: share that crossed", 100 * away / max(1, served), MAX_CROSSING_PERCENT, "%"),
    ]


def _ratio(work: WorkCount, saturated: WorkCount) -> float:
    return work.tokens_per_s / saturated.tokens_per_s if saturated.tokens_per_s else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
