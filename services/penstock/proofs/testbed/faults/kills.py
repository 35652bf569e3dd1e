"""Kills processes of a mesh under load, one at a time."""

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator

from penstock.local_mesh.processes import ChildProcess
from penstock.proofs.testbed.faults.fault_run import FaultRun
from penstock.proofs.testbed.testbed import POLL_INTERVAL_S, REST_TIMEOUT_S, Testbed, wait_for_tokens


async def kill_times(run: FaultRun, every_s: float) -> AsyncIterator[None]:
    """Yield when the next kill is due, until all planned faults were injected: not before clients received a token."""
    next_kill_at = time.time() + every_s
    while len(run.faults) < run.planned:
        await wait_for_tokens(run.load, 1)
        while time.time() < next_kill_at:
            run.report_progress("killing processes")
            await asyncio.sleep(0.25)
        next_kill_at = time.time() + every_s
        yield


def random_victims(testbed: Testbed, rng: random.Random) -> Iterator[ChildProcess]:
    """Yield a random process of each tier in turn, with the tiers in a new random order each time, without end."""
    while True:
        tiers = sorted({each.tier for each in testbed.mesh.plan.processes})
        for tier in rng.sample(tiers, len(tiers)):
            yield rng.choice([child for child in testbed.mesh.processes.children if child.spec.tier == tier])


async def kill_and_restart(run: FaultRun, victim: ChildProcess) -> None:
    """Kill a process and restart it at once; return after recovery, so that there is one fault at a time."""
    with run.injecting(victim.spec.name, "SIGKILL") as fault:
        victim.process.kill()
        code = await victim.process.wait()
        restarted = await run.testbed.mesh.restart(victim.spec.name)
        fault.has_taken_effect = code == -signal.SIGKILL and restarted.process.pid != victim.process.pid
    await wait_settled(run.testbed)


async def wait_settled(testbed: Testbed) -> None:
    """Wait until auth has confirmed every settlement; if an edge died before that, two faults would overlap.

    Raises TimeoutError after 60 s.
    """
    async with asyncio.timeout(REST_TIMEOUT_S):
        for edge in testbed.mesh.plan.processes_of("edge"):
            while not _is_settled(await testbed.figures_of(edge.admin_address)):  # noqa: ASYNC110  # another process settles
                await asyncio.sleep(POLL_INTERVAL_S)


def _is_settled(figures: dict[str, float]) -> bool:
    is_auth_connected = figures["auth_links_up"] > 0 and not figures["auth_unreachable"]
    return (
        is_auth_connected
        and not figures["deferred_reservations"]
        and figures["reservations_open"] <= figures["active_requests"]
    )
