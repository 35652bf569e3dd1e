"""Many requests come and go, some by leaving: no process holds more memory or descriptors afterwards."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import psutil
from rich.console import Console

from penstock.chassis.errors import PenstockError
from penstock.cli.plan import MeshOptions
from penstock.cli.processes import Child
from penstock.cli.scorecard.card import Card, Line, at_most, exactly, told
from penstock.cli.scorecard.catalog import Wish, catalog
from penstock.cli.scorecard.rig import Rig, rig
from penstock.cli.scorecard.verdicts import residue_lines
from penstock.client import Answer, Client, Options, Session

SETTINGS = ("PENSTOCK_WORKER_SIM_BASE_S=0.002", "PENSTOCK_LOG_LEVEL=warning")
STREAMS = 32
TOKENS = 12  # of an answer, at most
LEAVING = 0.25  # of the clients
LEAVE_WITHIN = 0.1  # s
LOOKS = 20
WARM = 0.4  # of the requests: of 50,000, those with which all that is remembered within bounds has filled
ENDS = 4  # looks at either end of the rest, whose medians are compared
GROWTH = 5.0  # % of a process's memory
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions:
    requests: int = 5_000
    seed: int = 0


@dataclass(slots=True)
class Looks:
    """What one process and its children held, look by look."""

    memory: list[int] = field(default_factory=list)  # bytes, resident
    descriptors: list[int] = field(default_factory=list)

    def grown(self) -> float:
        """Return the % by which memory grew after the warm-up."""
        rest = self.memory[int(WARM * len(self.memory)) :]
        before, after = median(rest[:ENDS]), median(rest[-ENDS:])
        return 100 * (after - before) / before


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

    async def _ask(self, answer: Answer) -> None:
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
            _look_at(child, found.setdefault(child.spec.name, Looks()))
    return found


def _look_at(child: Child, looks: Looks) -> None:
    process = psutil.Process(child.process.pid)
    family = [process, *process.children(recursive=True)]
    looks.memory.append(sum(each.memory_info().rss for each in family))
    looks.descriptors.append(sum(each.num_fds() for each in family))


def growth_lines(found: dict[str, Looks]) -> list[Line]:
    """The process that grew most is judged, by its own size."""
    grown = {name: looks.grown() for name, looks in found.items()}
    widest = max(max(looks.descriptors[-ENDS:]) - max(looks.descriptors[:ENDS]) for looks in found.values())
    return [
        told("memory of all processes at the end", sum(looks.memory[-1] for looks in found.values()) / MIB, "MiB"),
        at_most("growth of the process that grew most", max(grown.values()), GROWTH, "%"),
        at_most("descriptors more than at the start, of any process", widest, 0),
    ]


def _story(name: str, looks: Looks) -> str:
    sizes = [looks.memory[int(share * (len(looks.memory) - 1))] / MIB for share in (0.0, WARM, 0.5, 1.0)]
    return f"{name}: {' -> '.join(f'{size:.0f}' for size in sizes)} MiB, {looks.descriptors[-1]} descriptors"
