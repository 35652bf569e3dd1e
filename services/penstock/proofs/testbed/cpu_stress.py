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

from penstock.proofs.card import Line, at_least, exactly, told
from penstock.proofs.checks.injected_faults import Fault
from penstock.proofs.testbed.load import Load
from penstock.proofs.testbed.logs import events, unix_time
from penstock.proofs.testbed.testbed import Rig, progress

BURN = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"
LOOK = 1.0  # s
BUSY = 95.0  # % of all cores, or it was no strain
LINK_ENDS = ("edge", "scheduler", "worker")  # tiers that hold links to others, and tell when one goes down


@dataclass(frozen=True, slots=True)
class Strain:
    """When it was, in Unix s, and how busy the host was."""

    began: float
    ended: float
    cpu: float  # %


async def strain(stage: Rig, load: Load, faults: list[Fault], seconds: float) -> Strain:
    """Keep every core busy for a while, beside the load."""
    began, looks = time.time(), []
    async with _burning(seconds):
        psutil.cpu_percent()
        while (left := began + seconds - time.time()) > 0:
            await asyncio.sleep(min(LOOK, left))
            looks.append(psutil.cpu_percent())
            stage.say(f"every core is busy for {left:.0f} s more; {progress(load, faults, len(faults))}")
    return Strain(began, time.time(), sum(looks) / max(1, len(looks)))


@asynccontextmanager
async def _burning(seconds: float) -> AsyncIterator[None]:
    """One process for each core; they end by themselves should nobody be left to end them."""
    burners = [
        await asyncio.create_subprocess_exec(sys.executable, "-I", "-S", "-c", BURN, str(seconds))
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for each in burners:
            with suppress(ProcessLookupError):
                each.kill()
        await asyncio.gather(*(each.wait() for each in burners))


def strain_lines(seen: Strain, folder: Path) -> list[Line]:
    downs = [each for tier in LINK_ENDS for each in events(folder, tier, "link_down")]
    alarms = sum(seen.began <= unix_time(each) <= seen.ended for each in downs)
    return [
        told("minutes with every core busy", (seen.ended - seen.began) / 60),
        at_least("host CPU meanwhile", seen.cpu, BUSY, "%"),
        exactly("links given up meanwhile", alarms, 0),
    ]
