"""Processes that start and join nothing: what a mere start costs the others on the same cores."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from penstock.local_mesh.plan import ProcessSpec
from penstock.local_mesh.processes import ChildProcess, ChildProcesses

UNREACHABLE_ADDRESS = "127.0.0.1:1"  # where nothing listens
PEER_SETTINGS = ("AUTHS", "QUEUES", "SCHEDULERS")
CPU_SAMPLE_S = 0.25  # s over which a process's CPU is looked at
MAX_IDLE_CPU_PERCENT = 20.0  # % of a core
START_TIMEOUT_S = 15.0  # s at most


async def start_isolated(specs: Sequence[ProcessSpec], folder: Path) -> None:
    """Start the like of each process alone, one after the other, until it has come to rest; then end it."""
    processes = ChildProcesses(folder, lambda _: None)
    try:
        for spec in specs:
            child = await processes.start(isolated_spec(spec, folder))
            await _wait_idle(child)
            await processes.stop([spec.tier])
            processes.children.clear()
    finally:
        await processes.kill_all()


def isolated_spec(spec: ProcessSpec, folder: Path) -> ProcessSpec:
    """The same process without a peer, at a port and with a store of its own."""
    prefix = f"PENSTOCK_{spec.tier.upper()}_"
    own = {name: value for name, value in spec.environment.items() if name != f"{prefix}HTTP_LISTEN"}
    own |= {f"{prefix}{peers}": UNREACHABLE_ADDRESS for peers in PEER_SETTINGS if f"{prefix}{peers}" in own}
    own |= {f"{prefix}LISTEN": "127.0.0.1:0"}
    if f"{prefix}STORE" in own:
        own[f"{prefix}STORE"] = str(folder / "idle.sqlite")
    return replace(spec, name=f"idle-{spec.name}", environment=own)


async def _wait_idle(child: ChildProcess) -> None:
    process = psutil.Process(child.process.pid)
    with suppress(TimeoutError, psutil.NoSuchProcess):
        async with asyncio.timeout(START_TIMEOUT_S):
            used, now = 0.0, _cpu_time(process)
            while used == 0.0 or now - used > CPU_SAMPLE_S * MAX_IDLE_CPU_PERCENT / 100:
                await asyncio.sleep(CPU_SAMPLE_S)
                used, now = now, _cpu_time(process)


def _cpu_time(process: psutil.Process) -> float:
    """Seconds, of a process and its children together."""
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)
