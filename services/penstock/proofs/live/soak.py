"""Many requests come and go, some by leaving: no process holds more memory or descriptors afterwards."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import psutil
from rich.console import Console

from penstock.chassis.errors import PenstockError
from penstock.client import Client, Generation, Options, Session
from penstock.local_mesh.plan import MeshOptions
from penstock.local_mesh.processes import ChildProcess
from penstock.proofs.card import CardLine, ProofCard, at_most, exactly, reported
from penstock.proofs.checks.slope import Slope, fit_slope
from penstock.proofs.lines import residue_lines
from penstock.proofs.requests import ProofRequest, request_catalog
from penstock.proofs.testbed.testbed import Testbed, open_testbed

SETTINGS = ("PENSTOCK_WORKER_SIM_BASE_S=0.002", "PENSTOCK_LOG_LEVEL=warning")
CLIENTS = 32
MAX_OUTPUT_TOKENS = 12  # of an answer, at most
CANCEL_SHARE = 0.25  # of the clients
MAX_CANCEL_DELAY_S = 0.1  # s
SAMPLES = 60
WARM_UP_SHARE = 0.4  # of the requests
CACHES_FULL_REQUESTS = 20_000  # requests with which all that is remembered within bounds has filled
CACHED_BYTES_PER_REQUEST = 1_280  # bytes of each until then, in the process that remembers most
FINAL_SAMPLES = 4  # last looks, in all of which a descriptor that leaked is there
MAX_GROWTH_PERCENT = 5.0  # % of a process's memory, over the rest of the run
KIB, MIB = 2**10, 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions:
    requests: int = 5_000
    seed: int = 0


@dataclass(slots=True)
class ResourceSamples:
    """What one process and its children held and had used, look by look."""

    requests_sent: list[int] = field(default_factory=list)  # requests made by then
    memory_bytes: list[int] = field(default_factory=list)  # bytes, resident
    descriptors: list[int] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)  # s

    def memory_slope(self) -> Slope:
        """Bytes for each request after the warm-up."""
        rest = slice(int(WARM_UP_SHARE * len(self.requests_sent)), None)
        return fit_slope(self.requests_sent[rest], self.memory_bytes[rest])

    def descriptor_growth(self) -> int:
        return min(self.descriptors[-FINAL_SAMPLES:]) - max(
            self.descriptors[: max(1, int(WARM_UP_SHARE * len(self.requests_sent)))]
        )

    @property
    def cached_bytes_per_request(self) -> int:
        """Bytes for each request that are no leak: the warm-up was too short for them."""
        return (
            CACHED_BYTES_PER_REQUEST
            if self.requests_sent[int(WARM_UP_SHARE * len(self.requests_sent))] < CACHES_FULL_REQUESTS
            else 0
        )

    def growth_percent(self, bytes_per_request: float) -> float:
        """What so much for each request makes over all after the warm-up, in % of what was held before."""
        first = int(WARM_UP_SHARE * len(self.requests_sent))
        return 100 * bytes_per_request * (self.requests_sent[-1] - self.requests_sent[first]) / self.memory_bytes[first]


@dataclass(slots=True)
class SoakClients:
    """Clients in a closed loop, one after the other, until `wanted` requests were made."""

    client: Client
    session: Session
    requests: Sequence[ProofRequest]
    total: int
    rng: random.Random
    sent: int = 0
    cancelled: int = 0
    failures: list[str] = field(default_factory=list)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._run_client())

    async def _run_client(self) -> None:
        while self.sent < self.total:
            self.sent += 1
            wish = self.rng.choice(self.requests)
            asks = self.client if self.rng.random() < 0.5 else self.session
            await self._read_answer(asks.generate(wish.prompt, **Options(**wish.options)))

    async def _read_answer(self, answer: Generation) -> None:
        leaves = self.rng.random() < CANCEL_SHARE
        patience = self.rng.uniform(0.0, MAX_CANCEL_DELAY_S) if leaves else None
        try:
            async with asyncio.timeout(patience), answer:
                await answer.read()
        except TimeoutError:
            self.cancelled += 1
        except PenstockError as error:
            self.failures.append(repr(error))


async def soak(options: SoakOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    rng = random.Random(options.seed)
    async with open_testbed(mesh, console, settings=SETTINGS) as stage, stage.client.session() as session:
        crowd = SoakClients(
            stage.client, session, request_catalog(64, MAX_OUTPUT_TOKENS, options.seed), options.requests, rng
        )
        running = asyncio.create_task(crowd.run())
        found = await _sample_all(stage, crowd, running)
        await running
        residue = await stage.residue()
    card = ProofCard(proof="soak", void_reason="" if crowd.cancelled else "nobody left")
    card.lines += [
        reported("requests", crowd.sent),
        reported("of them left by their clients", crowd.cancelled),
        exactly("client-visible failures", len(crowd.failures), 0),
        *growth_lines(found),
        *residue_lines(residue),
    ]
    card.notes += [*crowd.failures[:5], *residue, *(_growth_text(name, looks) for name, looks in found.items())]
    return card


async def _sample_all(
    testbed: Testbed, clients: SoakClients, running: "asyncio.Task[None]"
) -> dict[str, ResourceSamples]:
    """Look at every process each time a share of the requests is through."""
    found: dict[str, ResourceSamples] = {}
    for look in range(1, SAMPLES + 1):
        while clients.sent < look * clients.total / SAMPLES and not running.done():
            testbed.report_progress(
                f"{clients.sent:,} of {clients.total:,} requests, {clients.cancelled:,} cancelled, "
                f"{len(clients.failures)} failed"
            )
            await asyncio.sleep(0.1)
        for child in testbed.mesh.processes.children:
            _sample(child, found.setdefault(child.spec.name, ResourceSamples()), clients.sent)
    return found


def _sample(child: ChildProcess, samples: ResourceSamples, sent: int) -> None:
    process = psutil.Process(child.process.pid)
    family = [process, *process.children(recursive=True)]
    samples.requests_sent.append(sent)
    samples.cpu_s.append(sum(sum(each.cpu_times()[:2]) for each in family))
    samples.memory_bytes.append(sum(each.memory_info().rss for each in family))
    samples.descriptors.append(sum(each.num_fds() for each in family))


def growth_lines(samples: dict[str, ResourceSamples]) -> list[CardLine]:
    """The process that grew most is judged, by its own size."""
    most = max(samples.values(), key=lambda looks: looks.growth_percent(looks.memory_slope().per_unit))
    growth = most.memory_slope()
    beyond = max(0.0, growth.per_unit - most.cached_bytes_per_request)
    widest = max(looks.descriptor_growth() for looks in samples.values())
    return [
        reported(
            "memory of all processes at the end", sum(looks.memory_bytes[-1] for looks in samples.values()) / MIB, "MiB"
        ),
        reported("growth of the process that grew most", most.growth_percent(growth.per_unit), "%"),
        reported("its standard error", most.growth_percent(growth.standard_error), "%"),
        at_most("growth beyond what is remembered within bounds", most.growth_percent(beyond), MAX_GROWTH_PERCENT, "%"),
        at_most("descriptors more than in the warm-up, of any process", widest, 0),
        reported("CPU for each request, of all processes", sum(map(_cpu_ms_per_request, samples.values())), "ms"),
    ]


def _cpu_ms_per_request(samples: ResourceSamples) -> float:
    """Milliseconds for each request."""
    return 1e3 * (samples.cpu_s[-1] - samples.cpu_s[0]) / max(1, samples.requests_sent[-1] - samples.requests_sent[0])


def _growth_text(name: str, samples: ResourceSamples) -> str:
    sizes = [
        samples.memory_bytes[int(share * (len(samples.memory_bytes) - 1))] / MIB
        for share in (0.0, WARM_UP_SHARE, 0.7, 1.0)
    ]
    slope = samples.memory_slope()
    return (
        f"{name}: {' -> '.join(f'{size:.0f}' for size in sizes)} MiB, {slope.per_unit * 1e3 / KIB:+.0f} ± "
        f"{slope.standard_error * 1e3 / KIB:.0f} KiB per 1,000 requests after the warm-up, "
        f"{samples.descriptors[-1]} descriptors, "
        f"{_cpu_ms_per_request(samples):.2f} ms of CPU for each"
    )
