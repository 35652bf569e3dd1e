"""Keeps every core of the host busy, to show that slow processes are not declared dead."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from penstock.proofs.card import CardLine, at_least, exactly, reported
from penstock.proofs.testbed.faults.fault_run import FaultRun
from penstock.proofs.testbed.logs import read_events, unix_time

BUSY_LOOP = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"
SAMPLE_INTERVAL_S = 1.0  # s
MIN_CPU_PERCENT = 95.0  # % of all cores; below, the host was not under stress
LINK_TIERS = ("edge", "scheduler", "worker")  # tiers that open links and log the loss of one


@dataclass(frozen=True, slots=True)
class CpuStress:
    """A period of stress, in Unix s, and how busy the host was."""

    started_at: float
    ended_at: float
    mean_cpu_percent: float  # %


async def stress_cpu(run: FaultRun, seconds: float) -> CpuStress:
    """Keep every core busy beside the load."""
    started_at, samples = time.time(), []
    async with _busy_processes(seconds):
        psutil.cpu_percent()
        while (left := started_at + seconds - time.time()) > 0:
            await asyncio.sleep(min(SAMPLE_INTERVAL_S, left))
            samples.append(psutil.cpu_percent())
            run.report_progress(f"every core is busy for {left:.0f} s more")
    return CpuStress(started_at, time.time(), sum(samples) / max(1, len(samples)))


@asynccontextmanager
async def _busy_processes(seconds: float) -> AsyncIterator[None]:
    """Run one busy process per core; each ends by itself if this process dies."""
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, "-I", "-S", "-c", BUSY_LOOP, str(seconds))
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                process.kill()
        await asyncio.gather(*(process.wait() for process in processes))


def stress_lines(stress: CpuStress, folder: Path) -> list[CardLine]:
    downs = [event for tier in LINK_TIERS for event in read_events(folder, tier, "link_down")]
    false_alarms = sum(stress.started_at <= unix_time(event) <= stress.ended_at for event in downs)
    return [
        reported("minutes with every core busy", (stress.ended_at - stress.started_at) / 60),
        at_least("host CPU meanwhile", stress.mean_cpu_percent, MIN_CPU_PERCENT, "%"),
        exactly("links closed meanwhile", false_alarms, 0),
    ]
