"""A process that stands still without dying is noticed, worked around, and says nothing stale when it goes on."""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil
from rich.console import Console

from penstock.local_mesh.plan import MeshOptions
from penstock.local_mesh.processes import ChildProcess
from penstock.proofs.card import CardLine, ProofCard, at_most, exactly, reported
from penstock.proofs.checks.injected_faults import InjectedFault, void_reason
from penstock.proofs.checks.ledger import check_charges
from penstock.proofs.checks.transcript import check_transcripts
from penstock.proofs.lines import charge_lines, finding_lines, pause_lines, residue_lines
from penstock.proofs.requests import request_catalog
from penstock.proofs.testbed.cpu_stress import stress_cpu, stress_lines
from penstock.proofs.testbed.load import ClosedLoopLoad, run_baseline
from penstock.proofs.testbed.logs import read_events, read_ledger, requests_by_ticket, unix_time
from penstock.proofs.testbed.testbed import Testbed, open_testbed, progress_text, under_load, wait_for_tokens

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
    minutes: float = 1.0  # with every core busy and nothing frozen
    seed: int = 0


class FreezeResult(NamedTuple):
    fault: InjectedFault
    instance_id: str
    tokens_meanwhile: int  # that clients got meanwhile
    requests_ended: int  # requests that ended meanwhile


async def freeze(options: FreezeOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    async with open_testbed(mesh, console, settings=SETTINGS) as stage:
        stage.report_progress("answering every request without a fault")
        wishes, calm = await run_baseline(stage.client, request_catalog(CATALOG_SIZE, options.tokens, options.seed))
        load = ClosedLoopLoad(stage.client, wishes, options.streams, options.seed)
        async with under_load(load):
            frozen = await _freeze_all(stage, load, options)
            faults = [each.fault for each in frozen]
            await asyncio.sleep(PAUSE_BETWEEN_S)  # for the last that stood still to find its peers
            busy = await stress_cpu(stage, load, faults, 60 * options.minutes)
        residue = await stage.residue()
        folder = stage.mesh.folder
    findings = check_transcripts(load.transcripts, calm.transcripts)
    charges = check_charges([*calm.transcripts, *load.transcripts], read_ledger(folder), requests_by_ticket(folder))
    card = ProofCard(proof="freeze", void_reason=void_reason(faults, len(TIERS) * options.rounds, options.streams))
    card.lines += [*finding_lines(findings), *charge_lines(charges)]
    for tier in TIERS:
        card.lines += _tier_lines(tier, [each for each in frozen if each.fault.name.startswith(tier)], folder)
    card.lines += stress_lines(busy, folder)
    card.lines += [*pause_lines(load.transcripts, calm.transcripts, faults, detection_s=MAX_DETECTION_S)]
    card.lines += residue_lines(residue)
    card.notes += [*findings.failure_reasons[:10], *residue]
    return card


async def _freeze_all(testbed: Testbed, load: ClosedLoopLoad, options: FreezeOptions) -> list[FreezeResult]:
    frozen: list[FreezeResult] = []
    await wait_for_tokens(load, options.streams)
    for number in range(options.rounds):
        for tier in TIERS:
            replicas = [child for child in testbed.mesh.processes.children if child.spec.tier == tier]
            before = load.tokens_received
            await asyncio.sleep(PAUSE_BETWEEN_S)
            victim = replicas[number % len(replicas)]
            done = progress_text(load, [each.fault for each in frozen], len(TIERS) * options.rounds)
            testbed.report_progress(f"{victim.spec.name} stands still; {done}")
            frozen.append(await _freeze_one(testbed, load, victim, load.tokens_received - before))
    return frozen


async def _freeze_one(testbed: Testbed, load: ClosedLoopLoad, victim: ChildProcess, tokens: int) -> FreezeResult:
    """Stop a process with its children for a while."""
    family = [victim.process.pid, *(each.pid for each in psutil.Process(victim.process.pid).children(recursive=True))]
    instance_id = await testbed.instance_id(victim.spec.address)
    under_way, at = load.active_requests, time.time()
    got, done = load.tokens_received, len(load.transcripts) - load.active_requests
    for pid in family:
        os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(FREEZE_S)
        has_happened = psutil.Process(victim.process.pid).status() == psutil.STATUS_STOPPED
    finally:
        for pid in family:
            os.kill(pid, signal.SIGCONT)
    fault = InjectedFault(
        name=victim.spec.name,
        kind="SIGSTOP",
        injected_at=at,
        recovered_at=time.time(),
        has_taken_effect=has_happened,
        active_requests=under_way,
        tokens_before=tokens,
    )
    return FreezeResult(
        fault, instance_id, load.tokens_received - got, len(load.transcripts) - load.active_requests - done
    )


def _tier_lines(tier: str, results: Sequence[FreezeResult], folder: Path) -> list[CardLine]:
    downs = [each for log in ("edge", "scheduler", "worker") for each in read_events(folder, log, "link_down")]
    delays = []
    for each in results:
        heard = [
            unix_time(down) - each.fault.injected_at
            for down in downs
            if each.instance_id == down["peer"] and each.fault.injected_at <= unix_time(down) < each.fault.recovered_at
        ]
        delays.append(heard)
    slowest = [max(heard) for heard in delays if heard]
    return [
        exactly(f"{tier}: freezes that nobody noticed", len(delays) - len(slowest), 0),
        at_most(f"{tier}: last peer noticed after", max(slowest, default=FREEZE_S), MAX_DETECTION_S, "s"),
        reported(f"{tier}: tokens that flowed meanwhile", sum(each.tokens_meanwhile for each in results)),
        reported(f"{tier}: requests that ended meanwhile", sum(each.requests_ended for each in results)),
    ]
