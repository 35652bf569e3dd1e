"""Peers detect and bypass a suspended process, and it sends nothing stale when it continues."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil
from rich.console import Console

from penstock.local_mesh.plan import MeshOptions
from penstock.local_mesh.processes import ChildProcess
from penstock.proofs.card import CardLine, ProofCard, at_most, exactly, pause_lines, reported
from penstock.proofs.checks.injected_faults import InjectedFault
from penstock.proofs.testbed.clients.load import ClosedLoopLoad, run_baseline
from penstock.proofs.testbed.faults.cpu_stress import LINK_TIERS, stress_cpu, stress_lines
from penstock.proofs.testbed.faults.fault_run import FaultRun, add_residue, fault_run
from penstock.proofs.testbed.faults.outages import suspended
from penstock.proofs.testbed.logs import detection_delay, read_events
from penstock.proofs.testbed.testbed import open_testbed

SETTINGS = ("PENSTOCK_WORKER_SIM_BASE_S=0.025",)
CATALOG_SIZE = 16
TIERS = ("worker", "scheduler", "queue", "auth")

FREEZE_S = 6.0  # s
PAUSE_BETWEEN_S = 4.0  # s
MAX_DETECTION_S = 2.0  # s; the promise


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeOptions:
    streams: int = 24
    tokens: int = 120  # of an answer, at most
    rounds: int = 2
    minutes: float = 1.0  # with every core busy and no process frozen
    seed: int = 0


class FreezeResult(NamedTuple):
    fault: InjectedFault
    instance_id: str
    tokens_during: int  # received by clients during the freeze
    requests_ended: int  # during the freeze


async def freeze(options: FreezeOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    async with open_testbed(mesh, console, settings=SETTINGS) as testbed:
        testbed.report_progress("answering every request without a fault")
        requests, baseline = await run_baseline(testbed.client, CATALOG_SIZE, options.tokens, options.seed)
        load = ClosedLoopLoad(testbed.driver, requests, options.streams, options.seed)
        async with fault_run(testbed, load, baseline, options.streams, len(TIERS) * options.rounds) as run:
            results = await _freeze_all(run, options)
            await asyncio.sleep(PAUSE_BETWEEN_S)  # until the last frozen process has reconnected
            stress = await stress_cpu(run, 60 * options.minutes)
        residue = await testbed.residue()
    card = run.card("freeze", run.check_all())
    card.lines += run.all_charge_lines()
    for tier in TIERS:
        card.lines += _tier_lines(tier, [each for each in results if each.fault.tier == tier], run.folder)
    card.lines += stress_lines(stress, run.folder)
    card.lines += pause_lines(load.transcripts, baseline, run.faults, detection_s=MAX_DETECTION_S)
    add_residue(card, residue)
    return card


async def _freeze_all(run: FaultRun, options: FreezeOptions) -> list[FreezeResult]:
    results = []
    for number in range(options.rounds):
        for tier in TIERS:
            replicas = [child for child in run.testbed.mesh.processes.children if child.spec.tier == tier]
            await asyncio.sleep(PAUSE_BETWEEN_S)
            victim = replicas[number % len(replicas)]
            run.report_progress(f"{victim.spec.name} stands still")
            results.append(await _freeze_one(run, victim))
    return results


async def _freeze_one(run: FaultRun, victim: ChildProcess) -> FreezeResult:
    """Stop a process and its children for `FREEZE_S`."""
    load = run.load
    instance_id = await run.testbed.instance_id(victim.spec.admin_address)
    tokens_before, ended_before = load.tokens_received, load.ended_requests
    with run.injecting(victim.spec.name, "SIGSTOP") as fault, suspended(victim) as process:
        await asyncio.sleep(FREEZE_S)
        fault.has_taken_effect = process.status() == psutil.STATUS_STOPPED
    return FreezeResult(fault, instance_id, load.tokens_received - tokens_before, load.ended_requests - ended_before)


def _tier_lines(tier: str, results: Sequence[FreezeResult], folder: Path) -> list[CardLine]:
    downs = [event for log in LINK_TIERS for event in read_events(folder, log, "link_down")]
    delays = [
        detection_delay(each.fault, (event for event in downs if event["peer"] == each.instance_id)) for each in results
    ]
    detected = [delay for delay in delays if delay is not None]
    return [
        exactly(f"{tier}: freezes that no peer detected", len(delays) - len(detected), 0),
        at_most(f"{tier}: last peer detected it after", max(detected, default=FREEZE_S), MAX_DETECTION_S, "s"),
        reported(f"{tier}: tokens received meanwhile", sum(each.tokens_during for each in results)),
        reported(f"{tier}: requests that ended meanwhile", sum(each.requests_ended for each in results)),
    ]
