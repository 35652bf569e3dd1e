"""What processes hold when nothing runs, against what they held before: streams, tasks, descriptors, credits."""

import asyncio
import gc
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from penstock.proofs.testbed.testbed import Testbed

PROCESS_FIGURES = ("open_streams", "asyncio_tasks", "open_fds")
BASELINE_SAMPLES = 4  # a look holds a connection, and the one before it may hold its own for a moment longer
SAMPLE_INTERVAL_S = 0.25  # s
SETTLE_TIMEOUT_S = 10.0  # s

Descriptors = dict[str, str]  # what each refers to, by what tells it from all others


class ResourceBaseline(NamedTuple):
    figures: dict[str, float]  # the least of several looks
    descriptors: dict[str, Descriptors]  # by process


async def take_baseline(testbed: Testbed) -> ResourceBaseline:
    """Return what is held now, by nothing but looking: a mesh at rest holds no less at the next look."""
    least: dict[str, float] = {}
    for _ in range(BASELINE_SAMPLES):
        least = _minimum(least, await _sample_figures(testbed))
        await asyncio.sleep(SAMPLE_INTERVAL_S)
    return ResourceBaseline(least, _sample_descriptors(testbed))


async def growth_since(testbed: Testbed, baseline: ResourceBaseline) -> tuple[dict[str, float], list[str]]:
    """Return what has not been back at its first value in any look, and which descriptors are new where they grew.

    A look holds connections too; a leak holds for ever.
    """
    deadline = asyncio.get_running_loop().time() + SETTLE_TIMEOUT_S
    least: dict[str, float] = {}
    while True:
        least = _minimum(least, await _sample_figures(testbed))
        more = {name: value - baseline.figures[name] for name, value in least.items() if value > baseline.figures[name]}
        if not more or asyncio.get_running_loop().time() > deadline:
            return more, new_descriptors(
                baseline.descriptors, _sample_descriptors(testbed), {name.split()[0] for name in more}
            )
        await asyncio.sleep(SAMPLE_INTERVAL_S)


def _minimum(lowest: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    return {name: min(value, lowest.get(name, value)) for name, value in now.items()}


async def _sample_figures(testbed: Testbed) -> dict[str, float]:
    gc.collect()  # a channel of ours that is closed keeps its connection until the cycle it is part of is found
    found: dict[str, float] = {}
    for child in testbed.mesh.processes.children:
        figures = await testbed.figures_of(child.spec.address)
        found |= {f"{child.spec.name} {name}": figures[name] for name in PROCESS_FIGURES}
    held, given = await testbed.sum_figure("scheduler", "credits"), await testbed.sum_figure("queue", "credits")
    found["credits that queues and schedulers count differently"] = abs(held - given)
    found["slots taken that nobody uses"] = -await testbed.sum_figure("scheduler", "available_leases")
    return found


def _sample_descriptors(testbed: Testbed) -> dict[str, Descriptors]:
    return {child.spec.name: open_descriptors(child.process.pid) for child in testbed.mesh.processes.children}


def open_descriptors(pid: int) -> Descriptors:
    """What a process has open; empty where the system does not tell."""
    found: Descriptors = {}
    with suppress(psutil.Error, OSError):
        ends = {each.fd: f"{each.laddr} to {each.raddr or 'nobody'}" for each in psutil.Process(pid).net_connections()}
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                target = str(entry.readlink())
                found[f"{entry.name} {target}"] = f"{target} {ends.get(int(entry.name), '')}".strip()
    return found


def new_descriptors(
    before: Mapping[str, Descriptors], after: Mapping[str, Descriptors], processes: set[str]
) -> list[str]:
    return [
        f"{process} opened {what}"
        for process in sorted(processes & after.keys())
        for key, what in after[process].items()
        if key not in before[process]
    ]
