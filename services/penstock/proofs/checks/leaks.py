"""Resources that processes hold at rest, compared with a baseline: streams, tasks, descriptors, credits."""

import asyncio
import gc
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from penstock.proofs.testbed.testbed import Testbed

PROCESS_FIGURES = ("open_streams", "asyncio_tasks", "open_fds")
# A sample opens a connection, and the connection of the sample before it may still be open.
BASELINE_SAMPLES = 4
SAMPLE_INTERVAL_S = 0.25  # s
SETTLE_TIMEOUT_S = 10.0  # s

Descriptors = dict[str, str]  # the target of each descriptor by its number and target


class ResourceBaseline(NamedTuple):
    figures: dict[str, float]  # the minimum of several samples
    descriptors: dict[str, Descriptors]  # by process


async def take_baseline(testbed: Testbed) -> ResourceBaseline:
    minimum: dict[str, float] = {}
    for _ in range(BASELINE_SAMPLES):
        minimum = _minimum(minimum, await _sample_figures(testbed))
        await asyncio.sleep(SAMPLE_INTERVAL_S)
    return ResourceBaseline(minimum, _sample_descriptors(testbed))


async def growth_since(testbed: Testbed, baseline: ResourceBaseline) -> tuple[dict[str, float], list[str]]:
    """Return the growth of each figure, and the new descriptors of the processes whose figures grew.

    A figure has grown only if it is above the baseline in every sample for 10 s, because sampling opens connections.
    """
    deadline = asyncio.get_running_loop().time() + SETTLE_TIMEOUT_S
    minimum: dict[str, float] = {}
    while True:
        minimum = _minimum(minimum, await _sample_figures(testbed))
        grown = {name: value - baseline.figures[name] for name, value in minimum.items()}
        growth = {name: by for name, by in grown.items() if by > 0}
        if not growth or asyncio.get_running_loop().time() > deadline:
            processes = {name.split()[0] for name in growth}
            return growth, new_descriptors(baseline.descriptors, _sample_descriptors(testbed), processes)
        await asyncio.sleep(SAMPLE_INTERVAL_S)


def _minimum(lowest: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    return {name: min(value, lowest.get(name, value)) for name, value in now.items()}


async def _sample_figures(testbed: Testbed) -> dict[str, float]:
    gc.collect()  # a closed channel keeps its connection until the garbage collector finds its reference cycle
    sample: dict[str, float] = {}
    for child in testbed.mesh.processes.children:
        figures = await testbed.figures_of(child.spec.admin_address)
        sample |= {f"{child.spec.name} {name}": figures[name] for name in PROCESS_FIGURES}
    held, granted = await testbed.sum_figure("scheduler", "credits"), await testbed.sum_figure("queue", "credits")
    sample["credits that queues and schedulers count differently"] = abs(held - granted)
    sample["slots taken by no request"] = -await testbed.sum_figure("scheduler", "available_leases")
    return sample


def _sample_descriptors(testbed: Testbed) -> dict[str, Descriptors]:
    return {child.spec.name: open_descriptors(child.process.pid) for child in testbed.mesh.processes.children}


def open_descriptors(pid: int) -> Descriptors:
    """Return the open descriptors of a process; empty if it has ended or the system does not list them."""
    descriptors: Descriptors = {}
    with suppress(psutil.Error, OSError):
        sockets = {
            each.fd: f"{each.laddr} to {each.raddr or 'no peer'}" for each in psutil.Process(pid).net_connections()
        }
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed in the meantime
                target = str(entry.readlink())
                descriptors[f"{entry.name} {target}"] = f"{target} {sockets.get(int(entry.name), '')}".strip()
    return descriptors


def new_descriptors(
    before: Mapping[str, Descriptors], after: Mapping[str, Descriptors], processes: set[str]
) -> list[str]:
    return [
        f"{process} opened {target}"
        for process in sorted(processes & after.keys())
        for key, target in after[process].items()
        if key not in before[process]
    ]
