"""Many requests, some of them cancelled: no process holds more memory or descriptors afterwards."""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import psutil
from rich.console import Console

from penstock.bench.drivers.driver import Driver
from penstock.bench.drivers.grpc import GrpcDriver
from penstock.bench.load import BenchRequest
from penstock.bench.run import process_cpu_s, run_closed_loop
from penstock.bench.statistics import Slope, fit_slope
from penstock.bench.transcript import OK, Transcript
from penstock.local_mesh.plan import MeshOptions
from penstock.local_mesh.processes import ChildProcess
from penstock.proofs.card import CardLine, ProofCard, at_most, exactly, reported
from penstock.proofs.requests import request_catalog
from penstock.proofs.testbed.faults.fault_run import add_residue
from penstock.proofs.testbed.testbed import Testbed, open_testbed

SETTINGS = ("PENSTOCK_WORKER_SIM_BASE_S=0.002", "PENSTOCK_LOG_LEVEL=warning")
CLIENTS = 32
CATALOG_SIZE = 64
MAX_OUTPUT_TOKENS = 12
CANCEL_SHARE = 0.25  # of the requests
MAX_CANCEL_DELAY_S = 0.1  # s
SAMPLES = 60
WARM_UP_SHARE = 0.4  # of the requests
CACHES_FULL_REQUESTS = 20_000  # requests after which every bounded cache is full
CACHED_BYTES_PER_REQUEST = 1_280  # bytes per request until then, in the process that caches most
FINAL_SAMPLES = 4  # a descriptor that leaked is open in all of the last samples
MAX_GROWTH_PERCENT = 5.0  # % of a process's memory, over the rest of the run
KIB, MIB = 2**10, 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions:
    requests: int = 5_000
    seed: int = 0


@dataclass(slots=True)
class ResourceSamples:
    """Samples of one process and its children."""

    requests_sent: list[int] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)  # resident
    descriptors: list[int] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    @property
    def _warm_up(self) -> int:
        """The number of samples in the warm-up."""
        return int(WARM_UP_SHARE * len(self.requests_sent))

    def memory_slope(self) -> Slope:
        """Bytes per request after the warm-up."""
        return fit_slope(self.requests_sent[self._warm_up :], self.memory_bytes[self._warm_up :])

    def descriptor_growth(self) -> int:
        return min(self.descriptors[-FINAL_SAMPLES:]) - max(self.descriptors[: max(1, self._warm_up)])

    @property
    def cached_bytes_per_request(self) -> int:
        """Bytes per request that are no leak, because the warm-up was too short to fill the caches."""
        return CACHED_BYTES_PER_REQUEST if self.requests_sent[self._warm_up] < CACHES_FULL_REQUESTS else 0

    def growth_percent(self, bytes_per_request: float) -> float:
        """Return the growth after the warm-up at this rate, in % of the memory at its end."""
        requests = self.requests_sent[-1] - self.requests_sent[self._warm_up]
        return 100 * bytes_per_request * requests / self.memory_bytes[self._warm_up]

    @property
    def cpu_ms_per_request(self) -> float:
        requests = max(1, self.requests_sent[-1] - self.requests_sent[0])
        return 1e3 * (self.cpu_s[-1] - self.cpu_s[0]) / requests


@dataclass(slots=True)
class SoakClients:
    """Clients in a closed loop that send `total` requests by random drivers."""

    drivers: Sequence[Driver]
    catalog: Sequence[BenchRequest]
    total: int
    rng: random.Random
    sent: int = 0
    cancelled: int = 0
    failures: list[str] = field(default_factory=list)

    async def run(self) -> None:
        await run_closed_loop(CLIENTS, self._requests(), self._send)

    def _requests(self) -> Iterator[BenchRequest]:
        while self.sent < self.total:
            self.sent += 1
            yield self.rng.choice(self.catalog)

    async def _send(self, request: BenchRequest) -> None:
        transcript = Transcript(request.number, time.time())
        delay = self.rng.uniform(0.0, MAX_CANCEL_DELAY_S) if self.rng.random() < CANCEL_SHARE else None
        try:
            async with asyncio.timeout(delay):
                await self.rng.choice(self.drivers).send(request, transcript)
        except TimeoutError:
            self.cancelled += 1
        if transcript.outcome not in ("", OK):
            self.failures.append(f"{transcript.code} / {transcript.outcome}")


async def soak(options: SoakOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    rng = random.Random(options.seed)
    async with open_testbed(mesh, console, settings=SETTINGS) as testbed, testbed.client.session() as session:
        drivers = [testbed.driver, GrpcDriver([session])]
        catalog = request_catalog(CATALOG_SIZE, MAX_OUTPUT_TOKENS, options.seed)
        clients = SoakClients(drivers, catalog, options.requests, rng)
        running = asyncio.create_task(clients.run())
        samples = await _sample_all(testbed, clients, running)
        await running
        residue = await testbed.residue()
    card = ProofCard(proof="soak", void_reason="" if clients.cancelled else "no client cancelled")
    card.lines += [
        reported("requests", clients.sent),
        reported("of them cancelled by their clients", clients.cancelled),
        exactly("client-visible failures", len(clients.failures), 0),
        *growth_lines(samples),
    ]
    add_residue(card, residue)
    card.notes += [*clients.failures[:5], *(_growth_text(name, each) for name, each in samples.items())]
    return card


async def _sample_all(
    testbed: Testbed, clients: SoakClients, running: "asyncio.Task[None]"
) -> dict[str, ResourceSamples]:
    """Sample every process at equal numbers of requests."""
    samples: dict[str, ResourceSamples] = {}
    for number in range(1, SAMPLES + 1):
        while clients.sent < number * clients.total / SAMPLES and not running.done():
            testbed.report_progress(
                f"{clients.sent:,} of {clients.total:,} requests, {clients.cancelled:,} cancelled, "
                f"{len(clients.failures)} failed"
            )
            await asyncio.sleep(0.1)
        for child in testbed.mesh.processes.children:
            _sample(child, samples.setdefault(child.spec.name, ResourceSamples()), clients.sent)
    return samples


def _sample(child: ChildProcess, samples: ResourceSamples, sent: int) -> None:
    process = psutil.Process(child.process.pid)
    processes = [process, *process.children(recursive=True)]
    samples.requests_sent.append(sent)
    samples.cpu_s.append(process_cpu_s(child.process.pid))
    samples.memory_bytes.append(sum(each.memory_info().rss for each in processes))
    samples.descriptors.append(sum(each.num_fds() for each in processes))


def growth_lines(samples: dict[str, ResourceSamples]) -> list[CardLine]:
    """The process that grew most, relative to its size, is judged."""
    most = max(samples.values(), key=lambda each: each.growth_percent(each.memory_slope().per_unit))
    slope = most.memory_slope()
    leaked = max(0.0, slope.per_unit - most.cached_bytes_per_request)
    memory = sum(each.memory_bytes[-1] for each in samples.values())
    new_descriptors = max(each.descriptor_growth() for each in samples.values())
    cpu_ms = sum(each.cpu_ms_per_request for each in samples.values())
    return [
        reported("memory of all processes at the end", memory / MIB, "MiB"),
        reported("growth of the process that grew most", most.growth_percent(slope.per_unit), "%"),
        reported("its standard error", most.growth_percent(slope.standard_error), "%"),
        at_most("growth beyond bounded caches", most.growth_percent(leaked), MAX_GROWTH_PERCENT, "%"),
        at_most("descriptors more than in the warm-up, of any process", new_descriptors, 0),
        reported("CPU per request, of all processes", cpu_ms, "ms"),
    ]


def _growth_text(name: str, samples: ResourceSamples) -> str:
    last = len(samples.memory_bytes) - 1
    sizes = [samples.memory_bytes[int(share * last)] / MIB for share in (0.0, WARM_UP_SHARE, 0.7, 1.0)]
    slope = samples.memory_slope()
    return (
        f"{name}: {' -> '.join(f'{size:.0f}' for size in sizes)} MiB, {slope.per_unit * 1e3 / KIB:+.0f} ± "
        f"{slope.standard_error * 1e3 / KIB:.0f} KiB per 1,000 requests after the warm-up, "
        f"{samples.descriptors[-1]} descriptors, {samples.cpu_ms_per_request:.2f} ms of CPU per request"
    )
