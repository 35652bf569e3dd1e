"""The faults of a batch: processes of all tiers are killed, a replica stands still, and the store is away."""

import asyncio
import itertools
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import psutil

from penstock.proofs.batches.run import BatchRun
from penstock.proofs.testbed.faults.kills import random_victims
from penstock.proofs.testbed.faults.outages import full_disk, postgres_away, suspended
from penstock.proofs.testbed.testbed import Testbed

MIN_KILLS = 12  # of a run whose kills go on until all lines have ended
SIGKILL, SIGSTOP, STORE_AWAY = "SIGKILL", "SIGSTOP", "away"  # kinds of faults

Fault = TypeVar("Fault")


async def inject_faults(run: BatchRun, *, kills: int | None, every_s: float, outage_s: float, seed: int) -> None:
    """Kill a process every `every_s`, and amid the first kills inject two outages. `kills`: as in `fault_sequence`."""
    victims = random_victims(run.testbed, random.Random(seed))

    async def kill(run: BatchRun) -> None:
        victim = next(victims)
        await run.samples.take()
        with run.injecting(victim.spec.name, SIGKILL) as fault:
            victim.process.kill()
            code = await victim.process.wait()
            restarted = await run.testbed.mesh.restart(victim.spec.name)
            fault.has_taken_effect = code == -signal.SIGKILL and restarted.process.pid != victim.process.pid

    async def freeze(run: BatchRun) -> None:
        victim = next(each for each in run.testbed.mesh.processes.children if each.spec.tier == "batch")
        with run.injecting(victim.spec.name, SIGSTOP) as fault, suspended(victim) as process:
            await asyncio.sleep(outage_s)
            fault.has_taken_effect = process.status() == psutil.STATUS_STOPPED

    async def take_store_away(run: BatchRun) -> None:
        with run.injecting("store", STORE_AWAY) as fault:
            async with _store_away(run.testbed):
                await asyncio.sleep(outage_s / 2)
                ended = run.lines_ended
                await asyncio.sleep(outage_s / 2)
                fault.has_taken_effect = run.lines_ended == ended  # no result could be stored
            await run.wait_lines(ended + 1)

    await run.wait_lines(1)
    due_at = time.monotonic() + every_s
    for inject in fault_sequence(kill, (freeze, take_store_away), kills):
        if not await run.runs_until(due_at):
            return
        due_at = time.monotonic() + every_s
        await inject(run)


def fault_sequence(kill: Fault, outages: Sequence[Fault], kills: int | None) -> Iterator[Fault]:
    """Yield `kills` kills with the outages amid them. None: kills without end, with the outages amid the first ones."""
    before = (MIN_KILLS if kills is None else kills) // 2
    yield from itertools.repeat(kill, before)
    yield from outages
    yield from itertools.repeat(kill) if kills is None else itertools.repeat(kill, kills - before)


@asynccontextmanager
async def _store_away(testbed: Testbed) -> AsyncIterator[None]:
    """Take PostgreSQL away, or let the disk of all batch processes be full, during the block."""
    if testbed.mesh.postgres:
        async with postgres_away(testbed.mesh.postgres):
            yield
        return
    with full_disk([each for each in testbed.mesh.processes.children if each.spec.tier == "batch"]):
        yield
