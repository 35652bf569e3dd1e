"""Every process of every tier is asked to end and started again, one after the other, and nobody notices."""

import asyncio
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from rich.console import Console

from penstock.local_mesh.plan import MeshOptions
from penstock.local_mesh.processes import ChildProcess
from penstock.proofs.card import CardLine, ProofCard, at_most, exactly, percentile, reported
from penstock.proofs.checks.injected_faults import InjectedFault, void_reason
from penstock.proofs.checks.ledger import check_charges
from penstock.proofs.checks.transcript import TokenTranscript, check_transcripts
from penstock.proofs.lines import charge_lines, fault_summary, finding_lines, pause_lines, residue_lines
from penstock.proofs.requests import request_catalog
from penstock.proofs.testbed.idle_start import start_isolated
from penstock.proofs.testbed.load import ClosedLoopLoad, run_baseline
from penstock.proofs.testbed.logs import read_ledger, requests_by_ticket
from penstock.proofs.testbed.testbed import Testbed, open_testbed, progress_text, under_load, wait_for_tokens

SLOTS_PER_WORKER = 8  # of a worker
SETTINGS = (f"PENSTOCK_WORKER_SLOTS={SLOTS_PER_WORKER}", "PENSTOCK_WORKER_SIM_BASE_S=0.025")
LOAD_SHARE = 0.8  # of what the workers carry while one of them is away
CATALOG_SIZE = 16
BASELINE_S = 12.0  # s of the same load before, to compare with
SLOWEST_SHOWN = 4
MIN_SHOWN_STAGE_S = 0.001  # s
MAX_TTFT_RATIO = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOptions:
    streams: int = 0  # 0: at 0.8 of capacity
    tokens: int = 40  # of an answer, at most
    rounds: int = 1
    seed: int = 0


async def drain(options: DrainOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    streams = options.streams or max(1, round(LOAD_SHARE * SLOTS_PER_WORKER * max(1, mesh.workers - 1)))
    async with open_testbed(mesh, console, settings=SETTINGS) as stage:
        stage.report_progress("answering every request without a fault")
        wishes, calm = await run_baseline(stage.client, request_catalog(CATALOG_SIZE, options.tokens, options.seed))
        load = ClosedLoopLoad(stage.client, wishes, streams, options.seed, explain=True)
        async with under_load(load):
            await wait_for_tokens(load, streams)
            marks = [time.time()]
            stage.report_progress("the same load, and nothing else happens")
            await asyncio.sleep(BASELINE_S)
            marks.append(time.time())
            stage.report_progress("processes start that join nothing")
            await start_isolated([each.spec for each in stage.mesh.processes.children], stage.mesh.folder)
            marks.append(time.time())
            faults, codes = await _drain_all(stage, load, options.rounds)
            marks.append(time.time())
        residue = await stage.residue()
        folder = stage.mesh.folder
    findings = check_transcripts(load.transcripts, calm.transcripts)
    charges = check_charges([*calm.transcripts, *load.transcripts], read_ledger(folder), requests_by_ticket(folder))
    card = ProofCard(proof="drain", void_reason=void_reason(faults, len(faults), streams))
    card.lines += [
        reported("streams", streams),
        exactly("processes that did not exit 0", sum(map(bool, codes.values())), 0),
    ]
    card.lines += [*finding_lines(findings), *charge_lines(charges)]
    spans = [_started_between(load.transcripts, *span) for span in pairwise(marks)]
    card.lines += [*ttft_lines(*spans), *pause_lines(load.transcripts, calm.transcripts, faults)]
    card.lines += residue_lines(residue)
    card.notes += [*findings.failure_reasons[:10], *residue, fault_summary(faults)]
    card.notes += [*_slowest_by_fault(load.transcripts, faults), *_slowest_stages(spans[-1])]
    card.notes += [f"{name} ended with {code}" for name, code in codes.items() if code]
    return card


async def _drain_all(testbed: Testbed, load: ClosedLoopLoad, rounds: int) -> tuple[list[InjectedFault], dict[str, int]]:
    faults: list[InjectedFault] = []
    codes: dict[str, int] = {}
    victims = list(testbed.mesh.processes.children) * rounds
    for victim in victims:
        testbed.report_progress(f"{victim.spec.name} drains; {progress_text(load, faults, len(victims))}")
        before = load.tokens_received
        await wait_for_tokens(load, 1)
        faults.append(await _drain_one(testbed, load, testbed.mesh.processes.named(victim.spec.name), codes, before))
    return faults, codes


async def _drain_one(
    testbed: Testbed, load: ClosedLoopLoad, victim: ChildProcess, codes: dict[str, int], tokens: int
) -> InjectedFault:
    under_way, at, flowed = load.active_requests, time.time(), load.tokens_received - tokens
    victim.process.send_signal(signal.SIGTERM)
    codes[victim.spec.name] = await victim.process.wait()
    again = await testbed.mesh.restart(victim.spec.name)
    return InjectedFault(
        name=victim.spec.name,
        kind="SIGTERM",
        injected_at=at,
        recovered_at=time.time(),
        has_taken_effect=again.process.pid != victim.process.pid,
        active_requests=under_way,
        tokens_before=flowed,
    )


def _started_between(transcripts: list[TokenTranscript], begin: float, end: float) -> list[TokenTranscript]:
    """Return those that began within a span, and came to a first token."""
    return [each for each in transcripts if each.ttft and begin <= each.started_at < end]


def ttft_lines(
    baseline: list[TokenTranscript], isolated_starts: list[TokenTranscript], rolling: list[TokenTranscript]
) -> list[CardLine]:
    """TTFT while one process after the other was away, against those of the calm before.

    A process that starts takes its share of the cores, whatever it joins; where they are few, that is told apart.
    """
    before, beside, during = (percentile(_ttfts(each), 0.99) for each in (baseline, isolated_starts, rolling))
    return [
        reported("requests in the calm", len(baseline)),
        reported("requests while processes were rolled", len(rolling)),
        reported("P99 TTFT calm", before, "s"),
        reported("P99 TTFT while processes start that join nothing", beside, "s"),
        reported("P99 TTFT rolling", during, "s"),
        reported("P50 TTFT ratio", percentile(_ttfts(rolling), 0.5) / max(1e-9, percentile(_ttfts(baseline), 0.5))),
        reported("P99 TTFT ratio to mere starts", during / max(1e-9, beside)),
        at_most("P99 TTFT ratio", during / max(1e-9, before), MAX_TTFT_RATIO),
    ]


def _ttfts(transcripts: list[TokenTranscript]) -> list[float]:
    return [each.ttft or 0.0 for each in transcripts]


def _slowest_by_fault(transcripts: list[TokenTranscript], faults: list[InjectedFault]) -> Iterator[str]:
    """Which process's absence made whom wait."""
    for fault in faults:
        waits = [each.ttft for each in transcripts if each.ttft and fault.overlaps(each.started_at, each.arrivals[0])]
        away_s = fault.recovered_at - fault.injected_at
        yield f"{fault.name} away for {away_s:.1f} s: slowest TTFT {max(waits, default=0.0):.3f} s"


def _slowest_stages(rolling: list[TokenTranscript]) -> Iterator[str]:
    """Where the slowest first tokens spent their time."""
    for each in sorted(rolling, key=lambda each: -(each.ttft or 0.0))[:SLOWEST_SHOWN]:
        known = sum(each.stage_durations.values())
        stages = ", ".join(
            f"{name} {1e3 * took:.0f}" for name, took in each.stage_durations.items() if took >= MIN_SHOWN_STAGE_S
        )
        rest = 1e3 * ((each.ttft or 0.0) - known)
        yield f"first token after {1e3 * (each.ttft or 0.0):.0f} ms: {stages}, on the way {rest:.0f}"
