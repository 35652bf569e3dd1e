"""Clients leave at once, at any state and by any door: the engine lets go at its next step, and nothing is left."""

import asyncio
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from penstock.cli.plan import MeshOptions
from penstock.cli.scorecard.card import Card, Line, at_most, exactly, percentile, told
from penstock.cli.scorecard.catalog import Wish, catalog
from penstock.cli.scorecard.leavers import DOORS, Doors, Leaver, Visit, open_doors
from penstock.cli.scorecard.logs import events, requests_by_ticket
from penstock.cli.scorecard.rig import Rig, rig
from penstock.cli.scorecard.verdicts import residue_lines

# Fewer slots than the larger crowd, so that some leave while they wait; small steps, so that a prompt takes several.
SETTINGS = (
    "PENSTOCK_WORKER_SLOTS=24",
    "PENSTOCK_WORKER_TOKEN_BUDGET=64",
    "PENSTOCK_WORKER_SIM_BASE_S=0.02",
)
GOALS = {32: 0.010, 128: 0.050}  # s, P99 from client to engine, by how many leave at once
ARRIVING = 1.5  # s, over which the clients of a crowd come, so that they leave at different states
TOKENS = 400  # of an answer: more than anybody stays for
STEPS = 2  # that which runs when the cancel comes, and the next, which frees
STANDING = ("open_streams", "asyncio_tasks", "open_fds")
SETTLE = 10.0  # s
CROWD_TIMEOUT = 60.0  # s for a crowd to come, leave and be gone

Ran = Mapping[str, dict[str, Any]]  # what a worker said of a run, by request


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelOptions:
    cancels: int = 960
    seed: int = 0


async def cancel(asked: CancelOptions, mesh: MeshOptions, console: Console) -> Card:
    rng = random.Random(asked.seed)
    crowds: dict[int, list[Leaver]] = {size: [] for size in GOALS}
    wishes = catalog(16, TOKENS, asked.seed)
    async with rig(mesh, console, settings=SETTINGS) as stage, open_doors(stage.mesh, stage.client) as doors:
        await _crowd(doors, wishes, max(GOALS), rng, "warm")
        await stage.residue()
        before = await _standing(stage)
        for number, size in enumerate(_sizes(asked.cancels)):
            stage.say(f"{sum(map(len, crowds.values())):,} of {asked.cancels:,} cancelled, {size} at once now")
            async with asyncio.timeout(CROWD_TIMEOUT):
                crowds[size] += await _crowd(doors, wishes, size, rng, f"crowd-{number}")
        residue = await stage.residue()
        grown = await _grown(stage, before)
        folder = stage.mesh.folder
    return _judge(crowds, _ran(folder), residue, grown)


def _sizes(cancels: int) -> Iterator[int]:
    offered = 0
    for size in itertools.cycle(GOALS):
        if offered >= cancels:
            return
        offered += size
        yield size


async def _crowd(doors: Doors, wishes: Sequence[Wish], size: int, rng: random.Random, name: str) -> list[Leaver]:
    async with asyncio.TaskGroup() as group:
        crowd = []
        for number in range(size):
            await asyncio.sleep(rng.uniform(0, 2) * ARRIVING / size)
            crowd.append(Visit(doors, DOORS[number % 3], rng.choice(wishes), f"{name}-{number}", group))
        for visit in crowd:
            await visit.leave()
    return [await visit.over() for visit in crowd]


def _ran(folder: Path) -> Ran:
    requests = requests_by_ticket(folder)
    return {requests[each["ticket_id"]]: each for each in events(folder, "worker", "run_ended") if "asked_at" in each}


async def _standing(stage: Rig) -> dict[str, float]:
    found: dict[str, float] = {}
    for child in stage.mesh.processes.children:
        figures = await stage.figures(child.spec.address)
        found |= {f"{child.spec.name} {name}": figures[name] for name in STANDING}
    held, given = await stage.total("scheduler", "credits"), await stage.total("queue", "credits")
    found["credits that queues and schedulers count differently"] = abs(held - given)
    found["slots taken that nobody uses"] = -await stage.total("scheduler", "room")
    return found


async def _grown(stage: Rig, before: Mapping[str, float]) -> dict[str, float]:
    """What has not been back at its first value in any look: a look holds connections too, a leak holds for ever."""
    deadline = asyncio.get_running_loop().time() + SETTLE
    least: dict[str, float] = {}
    while True:
        now = await _standing(stage)
        least = {name: min(value, least.get(name, value)) for name, value in now.items()}
        grown = {name: value - before[name] for name, value in least.items() if value > before[name]}
        if not grown or asyncio.get_running_loop().time() > deadline:
            return grown
        await asyncio.sleep(0.5)


def _judge(crowds: Mapping[int, list[Leaver]], ran: Ran, residue: dict[str, float], grown: dict[str, float]) -> Card:
    leavers = [each for crowd in crowds.values() for each in crowd if each.was_under_way]
    runs = [ran[each.request_id] for each in leavers if each.request_id in ran]
    failures = [each.failure for crowd in crowds.values() for each in crowd if each.failure]
    card = Card(proof="cancel", void=_void(crowds, len(runs)))
    card.lines += [told("clients that left", len(leavers)), told("of them while the engine had them", len(runs))]
    card.lines.append(exactly("client-visible failures before", len(failures), 0))
    for size, crowd in crowds.items():
        card.lines += _latency(size, crowd, ran)
    card.lines += [
        told("let go while not a token was made", sum(not each["output_tokens"] for each in runs)),
        told("P99 until the engine had let go", percentile([each["let_go_s"] for each in runs], 0.99), "s"),
        at_most("most steps until it had let go", max((each["let_go_steps"] for each in runs), default=0), STEPS),
        at_most("most tokens wasted by one", max((each["wasted_tokens"] for each in runs), default=0), 1),
        told("tokens wasted by all", sum(each["wasted_tokens"] for each in runs)),
        *residue_lines(residue),
        exactly("credits, slots, streams, tasks, descriptors grown", len(grown), 0),
    ]
    card.notes += [*failures[:5], *residue, *(f"{name} +{more:g}" for name, more in grown.items())]
    return card


def _void(crowds: Mapping[int, list[Leaver]], runs: int) -> str:
    everybody = [each for crowd in crowds.values() for each in crowd]
    stayed = sum(each.was_under_way for each in everybody)
    if stayed < 0.9 * len(everybody):
        return f"only {stayed} of {len(everybody)} requests were under way when their clients left"
    if not runs:
        return "no worker has told of a run that was cancelled"
    return ""


def _latency(size: int, crowd: Sequence[Leaver], ran: Ran) -> list[Line]:
    waits = {
        door: [
            ran[each.request_id]["asked_at"] - each.left_at
            for each in crowd
            if each.door == door and each.request_id in ran
        ]
        for door in DOORS
    }
    everything = [wait for door in waits.values() for wait in door]
    return [
        *(told(f"{size} at once: P99 by {door}", percentile(waits[door], 0.99), "s") for door in DOORS),
        told(f"{size} at once: P50 client to engine", percentile(everything, 0.5), "s"),
        at_most(f"{size} at once: P99 client to engine", percentile(everything, 0.99), GOALS[size], "s"),
    ]
