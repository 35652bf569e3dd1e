"""What processes hold when nothing runs, against what they held before: streams, tasks, descriptors, credits."""

import asyncio
import gc
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from penstock.proofs.testbed.testbed import Rig

NAMES = ("open_streams", "asyncio_tasks", "open_fds")
LOOKS = 4  # a look holds a connection, and the one before it may hold its own for a moment longer
BETWEEN = 0.25  # s
SETTLE = 10.0  # s

Descriptors = dict[str, str]  # what each refers to, by what tells it from all others


class Standing(NamedTuple):
    figures: dict[str, float]  # the least of several looks
    descriptors: dict[str, Descriptors]  # by process


async def standing(stage: Rig) -> Standing:
    """Return what is held now, by nothing but looking: a mesh at rest holds no less at the next look."""
    least: dict[str, float] = {}
    for _ in range(LOOKS):
        least = _least(least, await _figures(stage))
        await asyncio.sleep(BETWEEN)
    return Standing(least, _descriptors(stage))


async def grown(stage: Rig, before: Standing) -> tuple[dict[str, float], list[str]]:
    """Return what has not been back at its first value in any look, and which descriptors are new where they grew.

    A look holds connections too; a leak holds for ever.
    """
    deadline = asyncio.get_running_loop().time() + SETTLE
    least: dict[str, float] = {}
    while True:
        least = _least(least, await _figures(stage))
        more = {name: value - before.figures[name] for name, value in least.items() if value > before.figures[name]}
        if not more or asyncio.get_running_loop().time() > deadline:
            return more, opened(before.descriptors, _descriptors(stage), {name.split()[0] for name in more})
        await asyncio.sleep(BETWEEN)


def _least(least: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    return {name: min(value, least.get(name, value)) for name, value in now.items()}


async def _figures(stage: Rig) -> dict[str, float]:
    gc.collect()  # a channel of ours that is closed keeps its connection until the cycle it is part of is found
    found: dict[str, float] = {}
    for child in stage.mesh.processes.children:
        figures = await stage.figures(child.spec.address)
        found |= {f"{child.spec.name} {name}": figures[name] for name in NAMES}
    held, given = await stage.total("scheduler", "credits"), await stage.total("queue", "credits")
    found["credits that queues and schedulers count differently"] = abs(held - given)
    found["slots taken that nobody uses"] = -await stage.total("scheduler", "room")
    return found


def _descriptors(stage: Rig) -> dict[str, Descriptors]:
    return {child.spec.name: descriptors(child.process.pid) for child in stage.mesh.processes.children}


def descriptors(pid: int) -> Descriptors:
    """What a process has open; empty where the system does not tell."""
    found: Descriptors = {}
    with suppress(psutil.Error, OSError):
        ends = {each.fd: f"{each.laddr} to {each.raddr or 'nobody'}" for each in psutil.Process(pid).net_connections()}
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                target = str(entry.readlink())
                found[f"{entry.name} {target}"] = f"{target} {ends.get(int(entry.name), '')}".strip()
    return found


def opened(before: Mapping[str, Descriptors], now: Mapping[str, Descriptors], processes: set[str]) -> list[str]:
    return [
        f"{process} opened {what}"
        for process in sorted(processes & now.keys())
        for key, what in now[process].items()
        if key not in before[process]
    ]
