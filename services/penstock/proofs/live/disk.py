"""The disk of auth's store is full for a minute under load: callers that edges know are served, and charged after it.

Edges decide by auth fallback, as while auth is unreachable.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from penstock.bench.statistics import quantile
from penstock.bench.transcript import OK, TokenTranscript
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import CardLine, ProofCard, at_least, fault_summary, reported
from penstock.proofs.checks.injected_faults import InjectedFault
from penstock.proofs.testbed.clients.load import ClosedLoopLoad, run_baseline
from penstock.proofs.testbed.faults.fault_run import FaultRun, add_residue, fault_run
from penstock.proofs.testbed.faults.outages import full_disk
from penstock.proofs.testbed.testbed import POLL_INTERVAL_S, REST_TIMEOUT_S, Testbed, open_testbed

SETTINGS = ("PENSTOCK_WORKER_SIM_BASE_S=0.025",)
CATALOG_SIZE = 16
BEFORE_S = 5.0  # s of load before the disk is full


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskOptions:
    seconds: float = 60.0  # for which the disk is full
    streams: int = 16
    tokens: int = 40  # of an answer, at most
    seed: int = 0


async def disk(options: DiskOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    async with open_testbed(mesh, console, settings=SETTINGS) as testbed:
        testbed.report_progress("answering every request without a fault")
        requests, baseline = await run_baseline(testbed.client, CATALOG_SIZE, options.tokens, options.seed)
        load = ClosedLoopLoad(testbed.driver, requests, options.streams, options.seed)
        async with fault_run(testbed, load, baseline, options.streams, 1) as run:
            run.report_progress("the disk has room")
            await asyncio.sleep(BEFORE_S)
            await _fill_disk(run, options.seconds)
        residue = await testbed.residue()
    card = run.card("disk", run.check_all())
    card.lines += full_disk_lines(load.transcripts, run.faults[0])
    card.lines += run.all_charge_lines()
    add_residue(card, residue)
    card.notes.append(fault_summary(run.faults))
    return card


async def _fill_disk(run: FaultRun, seconds: float) -> None:
    auth = run.testbed.mesh.processes.named("auth")
    with run.injecting("auth", "full disk") as fault:
        with full_disk([auth]):
            fault.has_taken_effect = await _is_full_for(run, seconds)
        async with asyncio.timeout(REST_TIMEOUT_S):
            while not await _can_write(run.testbed):  # noqa: ASYNC110  # the event happens in another process
                await asyncio.sleep(POLL_INTERVAL_S)


async def _is_full_for(run: FaultRun, seconds: float) -> bool:
    """Wait; return whether auth reported during the second half that it cannot write."""
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at - seconds / 2:
        run.report_progress("the disk is full")
        await asyncio.sleep(POLL_INTERVAL_S)
    could_write = False
    while time.monotonic() < ends_at:
        run.report_progress("the disk is full")
        could_write = could_write or await _can_write(run.testbed)
        await asyncio.sleep(POLL_INTERVAL_S)
    return not could_write


async def _can_write(testbed: Testbed) -> bool:
    return bool(await testbed.sum_figure("auth", "store_available"))


def full_disk_lines(transcripts: Sequence[TokenTranscript], fault: InjectedFault) -> list[CardLine]:
    """What callers received while the disk was full; `charge_lines` show that all of it was charged after it."""
    served = [
        each
        for each in transcripts
        if each.outcome == OK and fault.injected_at <= each.started_at and each.ended_at <= fault.recovered_at
    ]
    before = [each for each in transcripts if each.outcome == OK and each.ended_at < fault.injected_at]
    return [
        at_least("requests served while the disk was full", len(served), 1),
        reported("P99 TTFT before", quantile([each.ttft or 0.0 for each in before], 0.99), "s"),
        reported("P99 TTFT while the disk was full", quantile([each.ttft or 0.0 for each in served], 0.99), "s"),
    ]
