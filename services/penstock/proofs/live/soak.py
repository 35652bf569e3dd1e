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
from penstock.local_mesh.processes import Child
from penstock.proofs.card import Card, Line, at_most, exactly, told
from penstock.proofs.checks.slope import Slope, fitted
from penstock.proofs.lines import residue_lines
from penstock.proofs.requests import Wish, catalog
from penstock.proofs.testbed.testbed import Rig, rig

SETTINGS = ("PENSTOCK_WORKER_SIM_BASE_S=0.002", "PENSTOCK_LOG_LEVEL=warning")
STREAMS = 32
TOKENS = 12  # of an answer, at most
LEAVING = 0.25  # of the clients
LEAVE_WITHIN = 0.1  # s
LOOKS = 60
WARM = 0.4  # of the requests
FILLED = 20_000  # requests with which all that is remembered within bounds has filled
REMEMBERED = 1_280  # bytes of each until then, in the process that remembers most
ENDS = 4  # last looks, in all of which a descriptor that leaked is there
GROWTH = 5.0  # % of a process's memory, over the rest of the run
KIB, MIB = 2**10, 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions:
    requests: int = 5_000
    seed: int = 0


@dataclass(slots=True)
class Looks:
    """What one process and its children held and had used, look by look."""

    at: list[int] = field(default_factory=list)  # requests made by then
    memory: list[int] = field(default_factory=list)  # bytes, resident
    descriptors: list[int] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)  # s

    def growth(self) -> Slope:
        """Bytes for each request after the warm-up."""
        rest = slice(int(WARM * len(self.at)), None)
        return fitted(self.at[rest], self.memory[rest])

    def more_descriptors(self) -> int:
        return min(self.descriptors[-ENDS:]) - max(self.descriptors[: max(1, int(WARM * len(self.at)))])

    @property
    def filling(self) -> int:
        """Bytes for each request that are no leak: the warm-up was too short for them."""
        return REMEMBERED if self.at[int(WARM * len(self.at))] < FILLED else 0

    def share(self, bytes_per_request: float) -> float:
        """What so much for each request makes over all after the warm-up, in % of what was held before."""
        first = int(WARM * len(self.at))
        return 100 * bytes_per_request * (self.at[-1] - self.at[first]) / self.memory[first]


@dataclass(slots=True)
class Crowd:
    """Clients in a closed loop, one after the other, until `wanted` requests were made."""

    client: Client
    session: Session
    wishes: Sequence[Wish]
    wanted: int
    rng: random.Random
    made: int = 0
    left: int = 0
    failures: list[str] = field(default_factory=list)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(STREAMS):
                group.create_task(self._ask_on())

    async def _ask_on(self) -> None:
        while self.made < self.wanted:
            self.made += 1
            wish = self.rng.choice(self.wishes)
            asks = self.client if self.rng.random() < 0.5 else self.session
            await self._ask(asks.generate(wish.prompt, **Options(**wish.options)))

    async def _ask(self, answer: Generation) -> None:
        leaves = self.rng.random() < LEAVING
        patience = self.rng.uniform(0.0, LEAVE_WITHIN) if leaves else None
        try:
            async with asyncio.timeout(patience), answer:
                await answer.read()
        except TimeoutError:
            self.left += 1
        except PenstockError as error:
            self.failures.append(repr(error))


async def soak(asked: SoakOptions, mesh: MeshOptions, console: Console) -> Card:
    rng = random.Random(asked.seed)
    async with rig(mesh, console, settings=SETTINGS) as stage, stage.client.session() as session:
        crowd = Crowd(stage.client, session, catalog(64, TOKENS, asked.seed), asked.requests, rng)
        running = asyncio.create_task(crowd.run())
        found = await _look_on(stage, crowd, running)
        await running
        residue = await stage.residue()
    card = Card(proof="soak", void="" if crowd.left else "nobody left")
    card.lines += [
        told("requests", crowd.made),
        told("of them left by their clients", crowd.left),
        exactly("client-visible failures", len(crowd.failures), 0),
        *growth_lines(found),
        *residue_lines(residue),
    ]
    card.notes += [*crowd.failures[:5], *residue, *(_story(name, looks) for name, looks in found.items())]
    return card


async def _look_on(stage: Rig, crowd: Crowd, running: "asyncio.Task[None]") -> dict[str, Looks]:
    """Look at every process each time a share of the requests is through."""
    found: dict[str, Looks] = {}
    for look in range(1, LOOKS + 1):
        while crowd.made < look * crowd.wanted / LOOKS and not running.done():
            stage.say(f"{crowd.made:,} of {crowd.wanted:,} requests, {crowd.left:,} left, {len(crowd.failures)} failed")
            await asyncio.sleep(0.1)
        for child in stage.mesh.processes.children:
            _look_at(child, found.setdefault(child.spec.name, Looks()), crowd.made)
    return found


def _look_at(child: Child, looks: Looks, made: int) -> None:
    process = psutil.Process(child.process.pid)
    family = [process, *process.children(recursive=True)]
    looks.at.append(made)
    looks.cpu.append(sum(sum(each.cpu_times()[:2]) for each in family))
    looks.memory.append(sum(each.memory_info().rss for each in family))
    looks.descriptors.append(sum(each.num_fds() for each in family))


def growth_lines(found: dict[str, Looks]) -> list[Line]:
    """The process that grew most is judged, by its own size."""
    most = max(found.values(), key=lambda looks: looks.share(looks.growth().rise))
    growth = most.growth()
    beyond = max(0.0, growth.rise - most.filling)
    widest = max(looks.more_descriptors() for looks in found.values())
    return [
        told("memory of all processes at the end", sum(looks.memory[-1] for looks in found.values()) / MIB, "MiB"),
        told("growth of the process that grew most", most.share(growth.rise), "%"),
        told("its standard error", most.share(growth.error), "%"),
        at_most("growth beyond what is remembered within bounds", most.share(beyond), GROWTH, "%"),
        at_most("descriptors more than in the warm-up, of any process", widest, 0),
        told("CPU for each request, of all processes", sum(map(_cpu, found.values())), "ms"),
    ]


def _cpu(looks: Looks) -> float:
    """Milliseconds for each request."""
    return 1e3 * (looks.cpu[-1] - looks.cpu[0]) / max(1, looks.at[-1] - looks.at[0])


def _story(name: str, looks: Looks) -> str:
    sizes = [looks.memory[int(share * (len(looks.memory) - 1))] / MIB for share in (0.0, WARM, 0.7, 1.0)]
    slope = looks.growth()
    return (
        f"{name}: {' -> '.join(f'{size:.0f}' for size in sizes)} MiB, {slope.rise * 1e3 / KIB:+.0f} ± "
        f"{slope.error * 1e3 / KIB:.0f} KiB per 1,000 requests after the warm-up, {looks.descriptors[-1]} descriptors, "
        f"{_cpu(looks):.2f} ms of CPU for each"
    )
