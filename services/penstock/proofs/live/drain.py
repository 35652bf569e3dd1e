"""Rolling restart: every process of every tier, or of some tiers, drains and restarts, one after the other, without a
failed request.
"""

import asyncio
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.console import Console

from penstock.bench.statistics import quantile
from penstock.bench.transcript import TokenTranscript
from penstock.local_mesh.plan import MeshOptions
from penstock.local_mesh.processes import ChildProcess
from penstock.proofs.card import CardLine, ProofCard, at_most, exactly, fault_summary, pause_lines, reported
from penstock.proofs.checks.injected_faults import InjectedFault
from penstock.proofs.testbed.clients.load import ClosedLoopLoad, run_baseline
from penstock.proofs.testbed.faults.fault_run import FaultRun, add_residue, fault_run
from penstock.proofs.testbed.idle_start import start_isolated
from penstock.proofs.testbed.testbed import open_testbed, wait_for_tokens

SLOTS_PER_WORKER = 8
SETTINGS = (f"PENSTOCK_WORKER_SLOTS={SLOTS_PER_WORKER}", "PENSTOCK_WORKER_SIM_BASE_S=0.025")
LOAD_SHARE = 0.8  # of the capacity of the workers while one of them is down
CATALOG_SIZE = 16
BASELINE_S = 12.0  # s of the same load without a fault, for comparison
SLOWEST_SHOWN = 4
MIN_SHOWN_STAGE_S = 0.001  # s
MAX_TTFT_RATIO = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOptions:
    streams: int = 0  # 0: at 0.8 of capacity
    tokens: int = 40  # of an answer, at most
    rounds: int = 1
    tiers: tuple[str, ...] = ()  # whose processes drain; empty: those of all
    seed: int = 0


async def drain(options: DrainOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    streams = options.streams or max(1, round(LOAD_SHARE * SLOTS_PER_WORKER * max(1, mesh.workers - 1)))
    exit_codes: dict[str, int] = {}
    async with open_testbed(mesh, console, settings=SETTINGS) as testbed:
        testbed.report_progress("answering every request without a fault")
        requests, baseline = await run_baseline(testbed.client, CATALOG_SIZE, options.tokens, options.seed)
        load = ClosedLoopLoad(testbed.driver, requests, streams, options.seed, explain=True)
        every = testbed.mesh.processes.children
        victims = [each for each in every if not options.tiers or each.spec.tier in options.tiers] * options.rounds
        async with fault_run(testbed, load, baseline, streams, len(victims)) as run:
            marks = [time.time()]
            testbed.report_progress("the same load without a fault")
            await asyncio.sleep(BASELINE_S)
            marks.append(time.time())
            testbed.report_progress("starting processes without peers")
            await start_isolated([child.spec for child in every], run.folder)
            marks.append(time.time())
            for victim in victims:
                await _drain_one(run, testbed.mesh.processes.named(victim.spec.name), exit_codes)
            marks.append(time.time())
        residue = await testbed.residue()
    card = run.card("drain", run.check_all())
    card.lines += [
        reported("streams", streams),
        exactly("processes that did not exit 0", sum(map(bool, exit_codes.values())), 0),
        *run.all_charge_lines(),
    ]
    spans = [_started_between(load.transcripts, *span) for span in pairwise(marks)]
    card.lines += [*ttft_lines(*spans), *pause_lines(load.transcripts, baseline, run.faults)]
    add_residue(card, residue)
    card.notes += [fault_summary(run.faults), *_slowest_by_fault(load.transcripts, run.faults)]
    card.notes += _slowest_stages(spans[-1])
    card.notes += [f"{name} ended with {code}" for name, code in exit_codes.items() if code]
    return card


async def _drain_one(run: FaultRun, victim: ChildProcess, exit_codes: dict[str, int]) -> None:
    run.report_progress(f"{victim.spec.name} drains")
    await wait_for_tokens(run.load, 1)
    with run.injecting(victim.spec.name, "SIGTERM") as fault:
        victim.process.send_signal(signal.SIGTERM)
        exit_codes[victim.spec.name] = await victim.process.wait()
        restarted = await run.testbed.mesh.restart(victim.spec.name)
        fault.has_taken_effect = restarted.process.pid != victim.process.pid


def _started_between(transcripts: Sequence[TokenTranscript], begin: float, end: float) -> list[TokenTranscript]:
    """Return the transcripts that started within a span and have a first token."""
    return [each for each in transcripts if each.ttft and begin <= each.started_at < end]


def ttft_lines(
    baseline: Sequence[TokenTranscript], isolated_starts: Sequence[TokenTranscript], rolling: Sequence[TokenTranscript]
) -> list[CardLine]:
    """TTFT during the rolling restart compared with the baseline.

    A process that starts uses CPU time whether or not it joins the mesh. The TTFT while processes start without peers
    shows this cost alone.
    """
    baseline_p99, isolated_p99, rolling_p99 = (
        quantile(_ttfts(each), 0.99) for each in (baseline, isolated_starts, rolling)
    )
    baseline_p50, rolling_p50 = quantile(_ttfts(baseline), 0.5), quantile(_ttfts(rolling), 0.5)
    return [
        reported("requests of the baseline", len(baseline)),
        reported("requests during the rolling restart", len(rolling)),
        reported("P99 TTFT of the baseline", baseline_p99, "s"),
        reported("P99 TTFT while processes start without peers", isolated_p99, "s"),
        reported("P99 TTFT rolling", rolling_p99, "s"),
        reported("P50 TTFT ratio", rolling_p50 / max(1e-9, baseline_p50)),
        reported("P99 TTFT ratio to starts without peers", rolling_p99 / max(1e-9, isolated_p99)),
        at_most("P99 TTFT ratio", rolling_p99 / max(1e-9, baseline_p99), MAX_TTFT_RATIO),
    ]


def _ttfts(transcripts: Sequence[TokenTranscript]) -> list[float]:
    return [each.ttft or 0.0 for each in transcripts]


def _slowest_by_fault(transcripts: Sequence[TokenTranscript], faults: Sequence[InjectedFault]) -> Iterator[str]:
    """Yield the slowest TTFT of the requests that waited while each process was down."""
    for fault in faults:
        waits = [each.ttft for each in transcripts if each.ttft and fault.overlaps(each.started_at, each.arrivals[0])]
        downtime = fault.recovered_at - fault.injected_at
        yield f"{fault.name} down for {downtime:.1f} s: slowest TTFT {max(waits, default=0.0):.3f} s"


def _slowest_stages(rolling: Sequence[TokenTranscript]) -> Iterator[str]:
    """Yield the stages of the slowest first tokens."""
    for each in sorted(rolling, key=lambda each: -(each.ttft or 0.0))[:SLOWEST_SHOWN]:
        durations = each.stage_durations
        stages = ", ".join(f"{name} {1e3 * s:.0f}" for name, s in durations.items() if s >= MIN_SHOWN_STAGE_S)
        ttft_ms = 1e3 * (each.ttft or 0.0)
        other_ms = ttft_ms - 1e3 * sum(durations.values())
        yield f"first token after {ttft_ms:.0f} ms: {stages}, in transit {other_ms:.0f}"
