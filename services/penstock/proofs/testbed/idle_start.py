"""Processes that start and join nothing: what a mere start costs the others on the same cores."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from penstock.local_mesh.plan import ProcessSpec
from penstock.local_mesh.processes import Child, Processes

NOBODY = "127.0.0.1:1"  # where nothing listens
PEERS = ("AUTHS", "QUEUES", "SCHEDULERS")
SPAN = 0.25  # s over which a process's CPU is looked at
AT_REST = 20.0  # % of a core
STARTING = 15.0  # s at most


async def start_idly(specs: Sequence[ProcessSpec], folder: Path) -> None:
    """Start the like of each process alone, one after the other, until it has come to rest; then end it."""
    processes = Processes(folder, lambda _: None)
    try:
        for spec in specs:
            child = await processes.start(alone(spec, folder))
            await _at_rest(child)
            await processes.stop([spec.tier])
            processes.children.clear()
    finally:
        await processes.kill_all()


def alone(spec: ProcessSpec, folder: Path) -> ProcessSpec:
    """The same process without a peer, at a port and with a store of its own."""
    prefix = f"PENSTOCK_{spec.tier.upper()}_"
    own = {name: value for name, value in spec.environment.items() if name != f"{prefix}HTTP_LISTEN"}
    own |= {f"{prefix}{peers}": NOBODY for peers in PEERS if f"{prefix}{peers}" in own}
    own |= {f"{prefix}LISTEN": "127.0.0.1:0"}
    if f"{prefix}STORE" in own:
        own[f"{prefix}STORE"] = str(folder / "idle.sqlite")
    return replace(spec, name=f"idle-{spec.name}", environment=own)


async def _at_rest(child: Child) -> None:
    process = psutil.Process(child.process.pid)
    with suppress(TimeoutError, psutil.NoSuchProcess):
        async with asyncio.timeout(STARTING):
            used, now = 0.0, _cpu_time(process)
            while used == 0.0 or now - used > SPAN * AT_REST / 100:
                await asyncio.sleep(SPAN)
                used, now = now, _cpu_time(process)


def _cpu_time(process: psutil.Process) -> float:
    """Seconds, of a process and its children together."""
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)
