"""Part `kill`: every process of a region, its proxy included, dies at once under load, and the region returns."""

import asyncio
import time
from collections.abc import Mapping, Sequence

from rich.console import Console

from penstock.bench.statistics import quantile
from penstock.bench.transcript import OK, TokenTranscript, check_transcripts
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import CardLine, at_least, at_most, exactly, reported, residue_lines
from penstock.proofs.regions.load import Resume, UnaryLoad, active_at
from penstock.proofs.regions.options import RegionsOptions
from penstock.proofs.regions.steady_load import SETTINGS, steady_load
from penstock.proofs.regions.testbed import (
    AWAY,
    HOME,
    CpuMeter,
    PartResult,
    RegionsTestbed,
    first_served,
    open_regions,
    residue_of,
)

UNARY_RATE = 50.0  # calls/s
AFTER_KILL_S = 3.0  # in which requests go on without the region
AFTER_RETURN_S = 3.0
RETURN_TIMEOUT_S = 30.0
MAX_FIRST_TOKEN_S = 0.5
MAX_RETURN_S = 5.0
MIN_IDENTICAL_PERCENT = 99.0


async def kill(options: RegionsOptions, mesh: MeshOptions, console: Console) -> PartResult:
    workers = {HOME: 1, AWAY: 1}
    async with open_regions(
        mesh, console, round_trip_s=options.round_trip_s, settings=SETTINGS, workers=workers
    ) as testbed:
        async with steady_load(testbed, options, "kill", UNARY_RATE) as load:
            other = CpuMeter(testbed.mesh(AWAY))
            killed_at = time.time()
            await testbed.local.kill(HOME)
            testbed.report_progress("kill: the region is dead")
            await asyncio.sleep(AFTER_KILL_S)
            wait_share = other.wait_share()
            returned_s = await _bring_back(testbed)
            await asyncio.sleep(AFTER_RETURN_S)
        residue = await residue_of(testbed)
    struck = active_at(load.transcripts, killed_at)
    result = PartResult(void_reason=void_reason(struck, options.streams))
    result.lines += stream_lines(load.transcripts, struck, load.baseline)
    result.lines += resume_lines(struck, load.driver.resumes, killed_at)
    result.lines.append(
        reported("share of its runnable time for which the other region had no core", 100 * wait_share, "%")
    )
    result.lines += unary_lines(load.unary, killed_at)
    result.lines.append(at_most("time until the returned region answers again", returned_s, MAX_RETURN_S, "s"))
    result.lines += residue_lines(residue)
    result.notes += [*residue, *load.failure_notes]
    return result


async def _bring_back(testbed: RegionsTestbed) -> float:
    """Restart the region. Return the s from the moment at which it serves until a request has begun there."""
    testbed.report_progress("kill: the region starts again")
    await testbed.local.restart(HOME)
    return await first_served(testbed.testbeds[HOME], RETURN_TIMEOUT_S)


def void_reason(struck: Sequence[TokenTranscript], streams: int) -> str:
    running = sum(each.tokens > 0 for each in struck)
    return "" if running >= streams // 2 else f"only {running} of {streams} streams had tokens at the kill"


def stream_lines(
    transcripts: Sequence[TokenTranscript], struck: Sequence[TokenTranscript], baseline: Sequence[TokenTranscript]
) -> list[CardLine]:
    findings, of_struck = check_transcripts(transcripts, baseline), check_transcripts(struck, baseline)
    identical = 100 * of_struck.identical / max(1, of_struck.requests)
    return [
        reported("requests", findings.requests),
        reported("of them running when the region was killed", of_struck.requests),
        at_least("of these complete with identical text", identical, MIN_IDENTICAL_PERCENT, "%"),
        exactly("requests that failed", findings.failures, 0),
        exactly("requests with another text", findings.requests - findings.identical - findings.failures, 0),
    ]


def resume_lines(
    struck: Sequence[TokenTranscript], resumes: Mapping[str, Sequence[Resume]], killed_at: float
) -> list[CardLine]:
    """The time to the first token of a later attempt, from the client's retry and from the kill."""
    found, lacking = [], 0
    for each in struck:
        later = [resume for resume in resumes.get(each.request_id, ()) if resume.at >= killed_at]
        if later:
            found.append(later[0])
        else:
            lacking += each.outcome != OK or each.attempts > 1  # the others had their last token before the kill
    after_kill = [each.at - killed_at for each in found]
    after_retry = [each.after_retry_s for each in found]
    return [
        exactly("running requests without a token from the other region", lacking, 0),
        reported("P50 time from the client's retry to the first token elsewhere", quantile(after_retry, 0.5), "s"),
        at_most("longest of these times", max(after_retry, default=0.0), MAX_FIRST_TOKEN_S, "s"),
        reported("P50 time from the kill to the first token elsewhere", quantile(after_kill, 0.5), "s"),
        reported("longest of these times from the kill", max(after_kill, default=0.0), "s"),
    ]


def unary_lines(unary: UnaryLoad, killed_at: float) -> list[CardLine]:
    struck = [each for each in unary.calls if each.started_at <= killed_at + 1.0 and each.ended_at >= killed_at]
    return [
        reported("unary calls", len(unary.calls)),
        exactly("unary calls that failed", len(unary.failures), 0),
        reported("longest unary call within a second of the kill", max((e.seconds for e in struck), default=0.0), "s"),
    ]
