"""A host whose every core is taken: whoever is only slow there must not count as dead."""

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
from penstock.proofs.checks.injected_faults import InjectedFault
from penstock.proofs.testbed.load import ClosedLoopLoad
from penstock.proofs.testbed.logs import read_events, unix_time
from penstock.proofs.testbed.testbed import Testbed, progress_text

BUSY_LOOP = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"
SAMPLE_INTERVAL_S = 1.0  # s
MIN_CPU_PERCENT = 95.0  # % of all cores, or it was no strain
LINK_TIERS = ("edge", "scheduler", "worker")  # tiers that hold links to others, and tell when one goes down


@dataclass(frozen=True, slots=True)
class CpuStress:
    """When it was, in Unix s, and how busy the host was."""

    started_at: float
    ended_at: float
    mean_cpu_percent: float  # %


async def stress_cpu(testbed: Testbed, load: ClosedLoopLoad, faults: list[InjectedFault], seconds: float) -> CpuStress:
    """Keep every core busy for a while, beside the load."""
    began, looks = time.time(), []
    async with _busy_processes(seconds):
        psutil.cpu_percent()
        while (left := began + seconds - time.time()) > 0:
            await asyncio.sleep(min(SAMPLE_INTERVAL_S, left))
            looks.append(psutil.cpu_percent())
            testbed.report_progress(
                f"every core is busy for {left:.0f} s more; {progress_text(load, faults, len(faults))}"
            )
    return CpuStress(began, time.time(), sum(looks) / max(1, len(looks)))


@asynccontextmanager
async def _busy_processes(seconds: float) -> AsyncIterator[None]:
    """One process for each core; they end by themselves should nobody be left to end them."""
    burners = [
        await asyncio.create_subprocess_exec(sys.executable, "-I", "-S", "-c", BUSY_LOOP, str(seconds))
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for each in burners:
            with suppress(ProcessLookupError):
                each.kill()
        await asyncio.gather(*(each.wait() for each in burners))


def stress_lines(stress: CpuStress, folder: Path) -> list[CardLine]:
    downs = [each for tier in LINK_TIERS for each in read_events(folder, tier, "link_down")]
    alarms = sum(stress.started_at <= unix_time(each) <= stress.ended_at for each in downs)
    return [
        reported("minutes with every core busy", (stress.ended_at - stress.started_at) / 60),
        at_least("host CPU meanwhile", stress.mean_cpu_percent, MIN_CPU_PERCENT, "%"),
        exactly("links given up meanwhile", alarms, 0),
    ]
