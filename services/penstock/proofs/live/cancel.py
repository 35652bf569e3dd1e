"""Clients leave at once, at any state and by any door: the engine lets go at its next step, and nothing is left."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import Card, Line, at_most, exactly, percentile, told
from penstock.proofs.checks.cpu_wait import on_cores
from penstock.proofs.checks.leaks import grown, standing
from penstock.proofs.lines import residue_lines
from penstock.proofs.testbed.cancelling_clients import DOORS, Leaver
from penstock.proofs.testbed.client_process import Call, Crowd, Place, Report, open_crowd
from penstock.proofs.testbed.logs import events, requests_by_ticket
from penstock.proofs.testbed.testbed import Rig, rig

# Fewer slots than the larger crowd, so that some leave while they wait; small steps, so that a prompt takes several.
SETTINGS = (
    "PENSTOCK_WORKER_SLOTS=24",
    "PENSTOCK_WORKER_TOKEN_BUDGET=64",
    "PENSTOCK_WORKER_SIM_BASE_S=0.02",
)
ARRIVING = 1.5  # s, over which the clients of a crowd come, so that they leave at different states
STEPS = 1  # that which runs when the engine is told; it begins the next without the request
CROWD_TIMEOUT = 60.0  # s for a crowd to come, leave and be gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """A way in which a crowd leaves."""

    name: str
    size: int
    leaving: float = 0.0  # s, over which they leave, each at a moment of its own; 0: all at once
    goal: float | None = None  # ms, P99 from client to engine

    def latency(self, what: str, measured: float) -> Line:
        return told(f"{self.name}: {what}", 1000 * measured, "ms")

    def judged(self, what: str, measured: float) -> Line:
        if self.goal is None:
            return self.latency(what, measured)
        return at_most(f"{self.name}: {what}", 1000 * measured, self.goal, "ms")


# Users leave one by one; a proxy that dies or a job that is stopped takes all of its requests along.
PARTINGS = (
    Parting(name="of 32 streams", size=32, leaving=1.0, goal=10),
    Parting(name="32 at once", size=32),
    Parting(name="128 at once", size=128, goal=50),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelOptions:
    cancels: int = 960
    tokens: int = 400  # of an answer, at most; half of them are more than anybody stays for
    seed: int = 0


async def cancel(asked: CancelOptions, mesh: MeshOptions, console: Console) -> Card:
    reports: dict[Parting, list[Report]] = {each: [] for each in PARTINGS}
    async with rig(mesh, console, settings=SETTINGS) as stage:
        async with _doors(stage, asked) as doors:
            await _come_and_leave(doors, PARTINGS[-1], "warm")
        await stage.residue()
        before = await standing(stage)
        began = on_cores(stage)
        async with _doors(stage, asked) as doors:
            done = 0
            for number, parting in enumerate(_partings(asked.cancels)):
                stage.say(f"{done:,} of {asked.cancels:,} cancelled, {parting.name} now")
                async with asyncio.timeout(CROWD_TIMEOUT):
                    reports[parting] += await _come_and_leave(doors, parting, f"crowd-{number}")
                done += parting.size
        cores = on_cores(stage).since(began)
        residue = await stage.residue()
        more, opened = await grown(stage, before)
        folder = stage.mesh.folder
    card = _judge(reports, Words.read(folder), residue)
    card.lines.append(cores)
    card.lines.append(exactly("credits, slots, streams, tasks, descriptors grown", len(more), 0))
    card.notes += [*(f"{name} +{by:g}" for name, by in more.items()), *opened]
    return card


def _partings(cancels: int) -> Iterator[Parting]:
    offered = 0
    for parting in itertools.cycle(PARTINGS):
        if offered >= cancels:
            return
        offered += parting.size
        yield parting


@asynccontextmanager
async def _doors(stage: Rig, asked: CancelOptions) -> AsyncIterator[Mapping[str, Crowd]]:
    """A process of clients for each door."""
    edges = stage.mesh.plan.of("edge")
    addresses, fronts = [each.address for each in edges], [each.http for each in edges]
    place = Place(edges=addresses, fronts=fronts, api_key=stage.mesh.api_key, tokens=asked.tokens, seed=asked.seed)
    async with AsyncExitStack() as stack:
        yield {door: await stack.enter_async_context(open_crowd(place)) for door in DOORS}


async def _come_and_leave(doors: Mapping[str, Crowd], parting: Parting, name: str) -> list[Report]:
    async with asyncio.TaskGroup() as group:
        for number, (door, crowd) in enumerate(doors.items()):
            share = len(range(number, parting.size, len(doors)))
            call = Call(name=f"{name}-{door}", door=door, size=share, arriving=ARRIVING, leaving=parting.leaving)
            group.create_task(crowd.come(call))
    return await asyncio.gather(*(crowd.leave() for crowd in doors.values()))


@dataclass(frozen=True, slots=True)
class Words:
    """What processes said of requests whose clients left, by request."""

    ran: Mapping[str, dict[str, Any]]  # workers, of those that the engine had
    heard: Mapping[str, float]  # edges: when they heard that the client had left, in Unix s

    @classmethod
    def read(cls, folder: Path) -> "Words":
        requests = requests_by_ticket(folder)
        ended = (each for each in events(folder, "worker", "run_ended") if "asked_at" in each)
        done = (each for each in events(folder, "edge", "ticket_done") if each["cancelled_at"])
        return cls(
            {requests[each["ticket_id"]]: each for each in ended},
            {each["request_id"]: each["cancelled_at"] for each in done},
        )


def _judge(reports: Mapping[Parting, Sequence[Report]], words: Words, residue: dict[str, float]) -> Card:
    crowds = {parting: [each for report in found for each in report.leavers] for parting, found in reports.items()}
    leavers = [each for crowd in crowds.values() for each in crowd if each.was_under_way]
    runs = [words.ran[each.request_id] for each in leavers if each.request_id in words.ran]
    failures = [each.failure for crowd in crowds.values() for each in crowd if each.failure]
    late = [each for found in reports.values() for report in found for each in report.late]
    card = Card(proof="cancel", void=_void(crowds, len(runs)))
    card.lines += [told("clients that left", len(leavers)), told("of them while the engine had them", len(runs))]
    card.lines.append(exactly("client-visible failures before", len(failures), 0))
    card.lines.append(
        told("P99 by which a timer of clients that only came was late", 1000 * percentile(late, 0.99), "ms")
    )
    for parting, crowd in crowds.items():
        card.lines += _latency(parting, [each for each in crowd if each.request_id in words.ran], words)
    card.lines += [
        told("let go while not a token was made", sum(not each["output_tokens"] for each in runs)),
        told(
            "P99 until the engine had let go",
            1000 * percentile([each["engine_cancel_latency_s"] for each in runs], 0.99),
            "ms",
        ),
        at_most(
            "most steps under way until it let go",
            max((each["engine_cancel_latency_steps"] for each in runs), default=0),
            STEPS,
        ),
        at_most("most tokens wasted by one", max((each["wasted_tokens"] for each in runs), default=0), 1),
        told("tokens wasted by all", sum(each["wasted_tokens"] for each in runs)),
        *residue_lines(residue),
    ]
    card.notes += [*failures[:5], *residue]
    return card


def _void(crowds: Mapping[Parting, list[Leaver]], runs: int) -> str:
    everybody = [each for crowd in crowds.values() for each in crowd]
    stayed = sum(each.was_under_way for each in everybody)
    if stayed < 0.9 * len(everybody):
        return f"only {stayed} of {len(everybody)} requests were under way when their clients left"
    if not runs:
        return "no worker has told of a run that was cancelled"
    return ""


def _latency(parting: Parting, crowd: Sequence[Leaver], words: Words) -> list[Line]:
    """Where the time went from a client's leaving to the word to the engine; each stretch by itself."""
    asked = {each: words.ran[each.request_id]["asked_at"] for each in crowd}
    waits = [asked[each] - each.left_at for each in crowd]
    edge = [each for each in crowd if each.request_id in words.heard]
    stretches = {
        "within the client": [each.passed_at - each.left_at for each in crowd],
        "client to edge": [words.heard[each.request_id] - each.left_at for each in edge],
        "edge to engine": [asked[each] - words.heard[each.request_id] for each in edge],
        **{f"by {door}": [asked[each] - each.left_at for each in crowd if each.door == door] for door in DOORS},
    }
    return [
        *(parting.latency(f"P99 {stretch}", percentile(took, 0.99)) for stretch, took in stretches.items()),
        parting.latency("P50 client to engine", percentile(waits, 0.5)),
        parting.judged("P99 client to engine", percentile(waits, 0.99)),
    ]
