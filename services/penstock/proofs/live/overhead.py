"""CPU time that the tiers between client and worker use for each request and each token and at rest, and their delay.

One process of each tier, and a worker whose steps take a fixed time. CPU time at rest is subtracted from that of each
load. The CPU time of the client and of the worker's engine is not counted; that of the worker's front process is
reported. `tools/bench_mesh` compares the same figures with those of routers.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import psutil
from rich.console import Console

from penstock.bench.cpu_wait import CpuUse, cpu_use_of
from penstock.bench.drivers.driver import HTTP_APIS, Driver, open_driver
from penstock.bench.load import BenchRequest
from penstock.bench.run import run_closed_loop, send_at_times
from penstock.bench.statistics import quantile
from penstock.bench.transcript import OK, Transcript
from penstock.client import Options
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import CardLine, ProofCard, at_most, exactly, reported
from penstock.proofs.testbed.testbed import Testbed, open_testbed

CONTROL_TIERS = ("edge", "auth", "queue", "scheduler")  # a router's place
FRONT = "worker front"  # the process of a worker without its engine
STEP_S = 0.01  # between two tokens of a stream
PROMPT = "Explain how a paged KV cache works."
WARM_UP_S = 1.0  # of each load
MAX_WAIT_SHARE = 0.75  # of the runnable time of the mesh; beyond it, caches are those of other work

MAX_LIGHT_REQUEST_US = 2_000.0
MAX_BUSY_REQUEST_US = 600.0
MAX_TOKEN_US = 23.0
MAX_SESSION_TOKEN_US = 8.0
MAX_EDGE_SESSION_TOKEN_US = 3.0
MAX_REST_MS_PER_S = 5.0
MAX_ADDED_TTFT_MS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadOptions:
    seconds: float = 4.0  # of each load that are judged


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadLoad:
    """A load: `rate` requests/s, or `clients` that each send the next request when their last one has ended."""

    api: str
    tokens: int  # of each answer
    rate: float = 0.0
    clients: int = 0

    def requests(self) -> Iterator[BenchRequest]:
        options = Options(max_output_tokens=self.tokens, ignore_eos=True)
        for number in itertools.count():
            yield BenchRequest(number=number, prompt=PROMPT, options=options, send_at=number / max(1.0, self.rate))


LOADS: Mapping[str, OverheadLoad] = {
    "light": OverheadLoad(api="chat", tokens=1, rate=20.0),
    "light tokens": OverheadLoad(api="chat", tokens=65, rate=20.0),
    "busy": OverheadLoad(api="session", tokens=1, clients=64),  # the client of the chat API uses more than the mesh
    "session": OverheadLoad(api="session", tokens=64, clients=64),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCost:
    """What the requests of one load took. CPU times are those beyond the CPU time at rest."""

    requests: int
    tokens: int
    failed: int
    seconds: float
    ttft_s: float  # median; 0 without tokens
    cpu_us: Mapping[str, float]  # by tier

    @property
    def control_us(self) -> float:
        return sum(self.cpu_us[tier] for tier in CONTROL_TIERS)

    @property
    def request_us(self) -> float:
        return self.control_us / max(1, self.requests)

    @property
    def token_us(self) -> float:
        return self.control_us / max(1, self.tokens)


async def overhead(options: OverheadOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    single = replace(mesh, edges=1, auths=1, queues=1, schedulers=1, workers=1)
    steps = {"BASE_S": STEP_S, "PER_PREFILL_TOKEN_S": 0.0, "PER_DECODE_SEQ_S": 0.0}
    settings = tuple(f"PENSTOCK_WORKER_SIM_{name}={value}" for name, value in steps.items())
    costs: dict[str, LoadCost] = {}
    async with open_testbed(single, console, settings=settings) as testbed:
        meter = _Meter(testbed)
        # The first load also pays for the work that a process does once.
        await _measure(testbed, meter, LOADS["busy"], 1.0, {})
        await asyncio.sleep(WARM_UP_S)
        rest_us = await _cpu_at_rest(meter, options.seconds)
        for name, load in LOADS.items():
            testbed.report_progress(f"load {name}")
            costs[name] = await _measure(testbed, meter, load, options.seconds, rest_us)
        wait_share = meter.wait_share()
    void = ""
    if wait_share > MAX_WAIT_SHARE:
        void = f"the mesh waited for a core for {wait_share:.0%} of its runnable time"
    return ProofCard(proof="overhead", void_reason=void, lines=overhead_lines(costs, rest_us))


def overhead_lines(costs: Mapping[str, LoadCost], rest_us: Mapping[str, float]) -> list[CardLine]:
    """Return the card's lines; `rest_us` is the CPU time in us for each second at rest, by tier."""
    light, tokens, busy, session = (costs[name] for name in ("light", "light tokens", "busy", "session"))
    token_us = max(0.0, tokens.control_us - tokens.requests * light.request_us) / max(1, tokens.tokens)
    rest_ms = sum(rest_us[tier] for tier in CONTROL_TIERS) / 1e3
    lines = [
        exactly("requests that failed", sum(each.failed for each in costs.values()), 0),
        at_most("CPU of a request at 20 requests/s", light.request_us, MAX_LIGHT_REQUEST_US, "us"),
        *_tier_lines("at 20 requests/s", light),
        at_most("CPU of a request, 64 at once on a session", busy.request_us, MAX_BUSY_REQUEST_US, "us"),
        *_tier_lines("64 at once", busy),
        reported("requests/s, 64 at once", busy.requests / busy.seconds),
        at_most("CPU of a token at 20 requests/s", token_us, MAX_TOKEN_US, "us"),
        at_most("CPU of a token of a session with 64 streams", session.token_us, MAX_SESSION_TOKEN_US, "us"),
        at_most(
            "CPU of such a token in the edge",
            session.cpu_us["edge"] / max(1, session.tokens),
            MAX_EDGE_SESSION_TOKEN_US,
            "us",
        ),
        at_most("CPU at rest", rest_ms, MAX_REST_MS_PER_S, "ms/s"),
    ]
    added_ttft_ms = max(0.0, light.ttft_s - STEP_S) * 1e3
    return [*lines, at_most("median TTFT beyond a step of the engine", added_ttft_ms, MAX_ADDED_TTFT_MS, "ms")]


def _tier_lines(when: str, cost: LoadCost) -> list[CardLine]:
    return [
        reported(f"of it in {tier}, {when}" if tier != FRONT else f"beside it in the {tier}, {when}", us, "us")
        for tier in (*CONTROL_TIERS, FRONT)
        for us in [cost.cpu_us[tier] / max(1, cost.requests)]
    ]


class _Meter:
    """CPU use of the processes of a mesh, by tier."""

    def __init__(self, testbed: Testbed) -> None:
        self._pids: dict[str, list[int]] = {tier: [] for tier in (*CONTROL_TIERS, FRONT)}
        for child in testbed.mesh.processes.children:
            pid, tier = child.process.pid, child.spec.tier
            if tier == "worker":
                self._pids[FRONT].append(pid)
            elif tier in CONTROL_TIERS:
                self._pids[tier] += [pid, *(each.pid for each in psutil.Process(pid).children(recursive=True))]
        self._began = self._use()

    def cpu_us(self) -> dict[str, float]:
        """Return the CPU time in us since the start of the processes, by tier."""
        return {tier: cpu_use_of(pids).ran_s * 1e6 for tier, pids in self._pids.items()}

    def wait_share(self) -> float:
        """Return the share of the runnable time since the start of the meter that was spent without a core."""
        return self._use().since(self._began).wait_share

    def _use(self) -> CpuUse:
        return cpu_use_of(pid for pids in self._pids.values() for pid in pids)


async def _cpu_at_rest(meter: _Meter, seconds: float) -> dict[str, float]:
    """Return the CPU time in us for each second, by tier."""
    before = meter.cpu_us()
    await asyncio.sleep(seconds)
    return {tier: (used - before[tier]) / seconds for tier, used in meter.cpu_us().items()}


async def _measure(
    testbed: Testbed, meter: _Meter, load: OverheadLoad, seconds: float, rest_us: Mapping[str, float]
) -> LoadCost:
    """Offer a load for `seconds`, after requests that open its connections."""
    plan = testbed.mesh.plan
    address = plan.http if load.api in HTTP_APIS else plan.grpc
    async with open_driver(load.api, [address], testbed.mesh.api_key, clock=time.monotonic) as driver:
        await _offer(driver, replace(load, tokens=1), WARM_UP_S)
        before, began = meter.cpu_us(), time.monotonic()
        transcripts = await _offer(driver, load, seconds)
        took = time.monotonic() - began
        used = {tier: us - before[tier] - rest_us.get(tier, 0.0) * took for tier, us in meter.cpu_us().items()}
    served = [each for each in transcripts if each.outcome == OK]
    return LoadCost(
        requests=len(served),
        tokens=sum(each.tokens for each in served),
        failed=len(transcripts) - len(served),
        seconds=took,
        ttft_s=quantile([each.ttft or 0.0 for each in served], 0.5),
        cpu_us={tier: max(0.0, us) for tier, us in used.items()},
    )


async def _offer(driver: Driver, load: OverheadLoad, seconds: float) -> list[Transcript]:
    """Send the requests of `seconds` and read their answers to the end."""
    end = time.monotonic() + seconds
    transcripts: list[Transcript] = []

    async def send(request: BenchRequest) -> None:
        transcript = Transcript(request.number, time.monotonic())
        transcripts.append(transcript)
        await driver.send(request, transcript)

    if load.rate:
        planned = itertools.islice(load.requests(), int(load.rate * seconds))
        await send_at_times(planned, lambda request: request.send_at, send)
    else:
        in_time = itertools.takewhile(lambda _: time.monotonic() < end, load.requests())
        await run_closed_loop(load.clients, in_time, send)
    return transcripts
