"""Starts processes without peers, to measure how much a start alone slows other processes on the same cores."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from penstock.bench.run import process_cpu_s
from penstock.local_mesh.plan import ProcessSpec
from penstock.local_mesh.processes import ChildProcess, ChildProcesses

UNREACHABLE_ADDRESS = "127.0.0.1:1"  # no process listens here
PEER_SETTINGS = ("AUTHS", "QUEUES", "SCHEDULERS")
CPU_SAMPLE_S = 0.25  # s
MAX_IDLE_CPU_PERCENT = 20.0  # % of a core; a process below has started
START_TIMEOUT_S = 15.0  # s


async def start_isolated(specs: Sequence[ProcessSpec], folder: Path) -> None:
    """Start an isolated copy of each process, one after the other; stop it when it is idle."""
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
    """Return the same process without peers, with its own port and store."""
    prefix = f"PENSTOCK_{spec.tier.upper()}_"
    own = {name: value for name, value in spec.environment.items() if name != f"{prefix}HTTP_LISTEN"}
    own |= {f"{prefix}{peers}": UNREACHABLE_ADDRESS for peers in PEER_SETTINGS if f"{prefix}{peers}" in own}
    own |= {f"{prefix}LISTEN": "127.0.0.1:0"}
    if f"{prefix}STORE" in own:
        own[f"{prefix}STORE"] = str(folder / "idle.sqlite")
    return replace(spec, name=f"idle-{spec.name}", environment=own)


async def _wait_idle(child: ChildProcess) -> None:
    pid = child.process.pid
    with suppress(TimeoutError, psutil.NoSuchProcess):
        async with asyncio.timeout(START_TIMEOUT_S):
            before, now = 0.0, process_cpu_s(pid)
            while before == 0.0 or now - before > CPU_SAMPLE_S * MAX_IDLE_CPU_PERCENT / 100:
                await asyncio.sleep(CPU_SAMPLE_S)
                before, now = now, process_cpu_s(pid)
