"""Part `cut`: the link between two regions is cut while tenants ask for more than their limits in both of them.

A tenant may have no more than its limits over all regions, whether or not they reach each other. A third tenant,
without limits, fills its region, so that its requests run in the other one when the link is cut. After the cut the
ledgers of both regions have exactly the tokens that clients received.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from rich.console import Console

from penstock.bench.drivers.driver import NO_RETRIES
from penstock.bench.drivers.grpc import GrpcDriver
from penstock.bench.transcript import OK, TokenTranscript
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import CardLine, at_most, charge_lines, exactly, reported, residue_lines
from penstock.proofs.checks.ledger import check_charges
from penstock.proofs.checks.quota import LedgerEntry, TenantLimits, check_limits
from penstock.proofs.regions.charges import charges_as_rows, read_charges, read_total_tokens
from penstock.proofs.regions.judge import RegionCharge, minutes_of
from penstock.proofs.regions.load import fixed_requests
from penstock.proofs.regions.options import RegionsOptions
from penstock.proofs.regions.testbed import AWAY, HOME, PartResult, RegionsTestbed, open_regions, residue_of
from penstock.proofs.testbed.clients.load import ClosedLoopLoad, Loads
from penstock.proofs.testbed.logs import read_events
from penstock.proofs.testbed.testbed import under_load
from penstock.v1.admin_pb2 import Tenant

SLOTS, WORKERS = 8, {HOME: 1, AWAY: 2}
SETTINGS = (
    f"PENSTOCK_WORKER_SLOTS={SLOTS}",
    "PENSTOCK_WORKER_SIM_BASE_S=0.03",
    "PENSTOCK_QUEUE_TTFT_STANDARD=5",
)
LIMITS = {
    "few-requests": TenantLimits(requests_per_minute=120),
    "few-tokens": TenantLimits(tokens_per_minute=6_000),
}
ROAMING = "roaming"
LIMITED_CLIENTS, ROAMING_CLIENTS = 8, 64  # of closed loops; those of tenants with limits in each region
LIMITED_TOKENS, ROAMING_TOKENS = 24, 40  # of an answer
PAUSE_AFTER_FAILURE_S = 0.2
BEFORE_S, AFTER_S = 15.0, 10.0  # of the cut, under the same load
SETTLE_S = 4.0  # after the load, until totals have crossed
OVER_LIMIT = "QUOTA_EXCEEDED"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCut:
    """Times in Unix s."""

    began_at: float  # of the load
    cut_at: float
    restored_at: float
    ended_at: float  # of the load
    spilled: float  # requests that the other region had when the link was cut
    had_blocked_data: bool


async def cut(options: RegionsOptions, mesh: MeshOptions, console: Console) -> PartResult:
    async with open_regions(
        mesh, console, round_trip_s=options.round_trip_s, settings=SETTINGS, workers=WORKERS
    ) as testbed:
        await testbed.put_tenants([Tenant(tenant_id=ROAMING), *_limited_tenants()])
        async with AsyncExitStack() as stack:
            loads = await _open_loads(testbed, stack, options.seed)
            async with under_load(Loads([each for _, each in loads])):
                times = await _cut_link(testbed, options.cut_seconds)
        testbed.report_progress("cut: waiting for the totals of both regions")
        await asyncio.sleep(SETTLE_S)
        residue = await residue_of(testbed)
    folders = testbed.folders()
    charges = {name: read_charges(folder) for name, folder in folders.items()}
    transcripts = [each for _, load in loads for each in load.transcripts]
    limited = [each for name, load in loads if name in LIMITS for each in load.transcripts]
    result = PartResult(void_reason=void_reason(limited, times.spilled, has_blocked_data=times.had_blocked_data))
    result.lines += [
        reported("time for which the link was cut", times.restored_at - times.cut_at, "s"),
        reported("requests that the other region had when the link was cut", times.spilled),
        reported("requests that it served before and after", sum(each.is_away for each in charges[HOME])),
    ]
    result.lines += tenant_lines(charges, (times.began_at, times.ended_at))
    result.lines += _ledger_lines(testbed, charges, transcripts)
    totals = {name: read_total_tokens(folders[name], AWAY) for name in folders}
    result.lines.append(exactly(f"tokens of {AWAY} that the totals of {HOME} lack", totals[AWAY] - totals[HOME], 0))
    result.lines += residue_lines(residue)
    result.notes += [*_minute_notes(charges, times.began_at, times.ended_at), *residue]
    return result


def _limited_tenants() -> Iterator[Tenant]:
    for name, limits in LIMITS.items():
        yield Tenant(
            tenant_id=name, requests_per_minute=limits.requests_per_minute, tokens_per_minute=limits.tokens_per_minute
        )


async def _open_loads(testbed: RegionsTestbed, stack: AsyncExitStack, seed: int) -> list[tuple[str, ClosedLoopLoad]]:
    """Return the loads with their tenants: of those with limits in both regions, and of the other one at home."""
    loads = []
    for region in WORKERS:
        for name in (*LIMITS, *([ROAMING] if region == HOME else [])):
            client = await stack.enter_async_context(testbed.client(region, name, retries=NO_RETRIES))
            is_limited = name in LIMITS
            clients = LIMITED_CLIENTS if is_limited else ROAMING_CLIENTS
            tokens = LIMITED_TOKENS if is_limited else ROAMING_TOKENS
            driver, requests = GrpcDriver([client], time.time), fixed_requests(64, tokens, seed)
            load = ClosedLoopLoad(driver, requests, clients, seed, pause_after_failure=PAUSE_AFTER_FAILURE_S)
            loads.append((name, load))
    return loads


async def _cut_link(testbed: RegionsTestbed, cut_s: float) -> LinkCut:
    began_at = time.time()
    testbed.report_progress("cut: load before the cut")
    await asyncio.sleep(BEFORE_S)
    spilled = await testbed.testbeds[HOME].sum_figure("edge", "spilled_requests")
    cut_at = time.time()
    testbed.local.cut(HOME, AWAY)
    testbed.report_progress("cut: the link is cut")
    await asyncio.sleep(cut_s)
    had_blocked_data = any(each.has_blocked_data for each in testbed.local.links.values())
    testbed.local.restore(HOME, AWAY)
    restored_at = time.time()
    await asyncio.sleep(AFTER_S)
    return LinkCut(
        began_at=began_at,
        cut_at=cut_at,
        restored_at=restored_at,
        ended_at=time.time(),
        spilled=spilled,
        had_blocked_data=had_blocked_data,
    )


def void_reason(limited: Sequence[TokenTranscript], spilled: float, *, has_blocked_data: bool) -> str:
    if not has_blocked_data:
        return "no byte waited while the link was cut"
    if not any(each.outcome == OVER_LIMIT for each in limited):
        return "no request was above a limit"
    return "" if spilled else "no request ran in the other region when the link was cut"


def tenant_lines(charges: Mapping[str, Sequence[RegionCharge]], span: tuple[float, float]) -> Iterator[CardLine]:
    """Lines for each tenant with limits, over all regions. A share of a limit is rounded by one at most, per region."""
    entries = [each.entry for rows in charges.values() for each in rows]
    begin, end = span
    for name, limits in LIMITS.items():
        own = [each for each in entries if each.tenant_id == name]
        findings = check_limits(own, {name: limits}, ())
        what = "tokens" if limits.tokens_per_minute else "requests"
        beyond = findings.tokens_over if limits.tokens_per_minute else findings.requests_over
        yield reported(f"{name}: admitted requests", len(own))
        yield at_most(f"{name}: {what} beyond its limit, over both regions", beyond, len(charges))
        yield reported(f"{name}: used share of its limit", 100 * used_share(own, limits, end - begin), "%")


def used_share(entries: Sequence[LedgerEntry], limits: TenantLimits, seconds: float) -> float:
    """Return the share of what a limit allows in a time that begins with a full bucket."""
    limit = limits.tokens_per_minute or limits.requests_per_minute
    used = sum(each.taken_tokens for each in entries) if limits.tokens_per_minute else len(entries)
    return used / (limit * (1 + seconds / 60))


def _ledger_lines(
    testbed: RegionsTestbed, charges: Mapping[str, Sequence[RegionCharge]], transcripts: Sequence[TokenTranscript]
) -> list[CardLine]:
    """The ledgers of both regions together, and the tokens that clients received."""
    tickets = {
        each["ticket_id"]: each["request_id"]
        for folder in testbed.folders().values()
        for each in read_events(folder, "edge", "ticket_done")
    }
    rows = [row for each in charges.values() for row in charges_as_rows(each)]
    answers = sum(each.outcome == OK for each in transcripts)
    return [reported("answers", answers), *charge_lines(check_charges(transcripts, rows, tickets))]


def _minute_notes(charges: Mapping[str, Sequence[RegionCharge]], begin: float, end: float) -> Iterator[str]:
    for name in LIMITS:
        entries = [each.entry for rows in charges.values() for each in rows if each.entry.tenant_id == name]
        minutes = ", ".join(f"{each.requests} / {each.tokens}" for each in minutes_of(entries, begin, end))
        yield f"{name}: requests / tokens in each minute: {minutes}"
