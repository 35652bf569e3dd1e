"""Part `drain`: a region is drained by an operator under load, cuts nothing, and ends with its longest answer."""

import asyncio
import time
from collections.abc import Sequence

from rich.console import Console

from penstock.bench.transcript import OK, TokenTranscript, check_transcripts
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import CardLine, at_least, at_most, exactly, reported, residue_lines
from penstock.proofs.regions.load import active_at
from penstock.proofs.regions.options import RegionsOptions
from penstock.proofs.regions.steady_load import SETTINGS, steady_load
from penstock.proofs.regions.testbed import AWAY, HOME, PartResult, RegionsTestbed, open_regions, residue_of
from penstock.proofs.testbed.testbed import POLL_INTERVAL_S

UNARY_RATE = 20.0  # calls/s
DRAIN_TIMEOUT_S = 120.0
LEAVING_S = 2.0  # until the proxies have the new routes; later requests are expected elsewhere
AFTER_DRAIN_S = 3.0


async def drain(options: RegionsOptions, mesh: MeshOptions, console: Console) -> PartResult:
    async with open_regions(
        mesh, console, round_trip_s=options.round_trip_s, settings=SETTINGS, workers={HOME: 1, AWAY: 1}
    ) as testbed:
        async with steady_load(testbed, options, "drain", UNARY_RATE) as load:
            drained_at = time.time()
            await testbed.drain(HOME)
            testbed.report_progress("drain: waiting until no call is open")
            drain_s, started_late = await _wait_drained(testbed, drained_at)
            await asyncio.sleep(AFTER_DRAIN_S)
            served_away = await testbed.testbeds[AWAY].sum_figure("edge", "requests_started")
            await testbed.restore(HOME)
        residue = await residue_of(testbed)
    struck = active_at(load.transcripts, drained_at)
    served = [each for each in load.transcripts if each.ended_at > drained_at >= each.started_at - LEAVING_S]
    result = PartResult(void_reason="" if struck else "no request was running when the region was drained")
    result.lines += cut_lines(load.transcripts, struck, load.baseline)
    result.lines += end_lines(served, drain_s, started_late, served_away)
    result.lines += [reported("unary calls", len(load.unary.calls))]
    result.lines += [exactly("unary calls that failed", len(load.unary.failures), 0), *residue_lines(residue)]
    result.notes += [*residue, *load.failure_notes]
    return result


async def _wait_drained(testbed: RegionsTestbed, drained_at: float) -> tuple[float, float]:
    """Wait until no call is open in the region. Return the s since the drain, and the requests it began too late."""
    home = testbed.testbeds[HOME]
    await asyncio.sleep(max(0.0, drained_at + LEAVING_S - time.time()))
    started = await home.sum_figure("edge", "requests_started")
    async with asyncio.timeout(DRAIN_TIMEOUT_S):
        while True:
            state = await testbed.own_state(HOME)
            if state.proxies and not state.open_calls:
                break
            await asyncio.sleep(POLL_INTERVAL_S)
    return time.time() - drained_at, await home.sum_figure("edge", "requests_started") - started


def cut_lines(
    transcripts: Sequence[TokenTranscript], struck: Sequence[TokenTranscript], baseline: Sequence[TokenTranscript]
) -> list[CardLine]:
    findings = check_transcripts(transcripts, baseline)
    cut = [each for each in struck if each.outcome != OK or each.attempts > 1]
    return [
        reported("requests", findings.requests),
        reported("of them running at the drain", len(struck)),
        exactly("streams that the drain cut", len(cut), 0),
        exactly("requests that failed", findings.failures, 0),
        exactly("requests with another text", findings.requests - findings.identical - findings.failures, 0),
    ]


def end_lines(
    served: Sequence[TokenTranscript], drain_s: float, started_late: float, served_away: float
) -> list[CardLine]:
    """`served`: requests that may have begun before the proxies had the new routes."""
    longest = max((each.ended_at - each.started_at for each in served), default=0.0)
    return [
        reported("longest answer that was running", longest, "s"),
        at_most("time until the region had no open call", drain_s, round(longest + LEAVING_S, 3), "s"),
        exactly(f"requests that it began {LEAVING_S:g} s after the drain", started_late, 0),
        at_least("requests that the other region served", served_away, 1),
    ]
