"""Links that are cut in one or both directions, with connections left open, are detected and bypassed.

A client that is cut off from its edge resumes through another edge. The tokens that the first edge generates until it
detects the cut are charged, as for any client that disconnects, and reported. The charges of all prompts, and of all
other requests, are exact.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from penstock.bench.transcript import TokenTranscript
from penstock.local_mesh.plan import MeshOptions
from penstock.local_mesh.tcp_relay import CutDirection, TcpRelay
from penstock.proofs.card import CardLine, ProofCard, at_most, charge_lines, exactly, pause_lines, reported
from penstock.proofs.checks.injected_faults import InjectedFault
from penstock.proofs.checks.ledger import LedgerCharge, check_charges
from penstock.proofs.testbed.clients.load import ClosedLoopLoad, run_baseline
from penstock.proofs.testbed.faults.fault_run import FaultRun, add_residue, fault_run
from penstock.proofs.testbed.faults.tcp_relays import CLIENTS, TcpRelays
from penstock.proofs.testbed.logs import detection_delay, read_events, read_ledger, requests_by_ticket
from penstock.proofs.testbed.testbed import open_testbed

SETTINGS = ("PENSTOCK_WORKER_SIM_BASE_S=0.025",)
CATALOG_SIZE = 16
LINKS = (
    ("edge", "worker"),
    ("worker", "scheduler"),
    ("scheduler", "queue"),
    ("edge", "queue"),
    ("edge", "auth"),
    (CLIENTS, "edge"),
)
CUT_S = 5.0  # s
PAUSE_BETWEEN_S = 3.0  # s
MAX_DETECTION_S = 2.0  # s; the promise


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOptions:
    streams: int = 24
    tokens: int = 120  # of an answer, at most
    links: Sequence[tuple[str, str]] = LINKS
    cuts: Sequence[CutDirection] = tuple(CutDirection)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PartitionResult:
    fault: InjectedFault
    relay: TcpRelay
    link: tuple[str, str]


async def partition(options: PartitionOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    planned = len(options.links) * len(options.cuts)
    async with AsyncExitStack() as stack:
        relays = TcpRelays(stack)
        testbed = await stack.enter_async_context(open_testbed(mesh, console, settings=SETTINGS, relays=relays))
        testbed.report_progress("answering every request without a fault")
        requests, baseline = await run_baseline(testbed.client, CATALOG_SIZE, options.tokens, options.seed)
        load = ClosedLoopLoad(testbed.driver, requests, options.streams, options.seed)
        async with fault_run(testbed, load, baseline, options.streams, planned) as run:
            results = await _cut_all(run, relays, options)
            await asyncio.sleep(PAUSE_BETWEEN_S)  # until the last processes that were cut off have reconnected
        residue = await testbed.residue()
        instances = {each.name: await testbed.instance_id(each.admin_address) for each in testbed.mesh.plan.processes}
    card = run.card("partition", run.check_all())
    card.lines += _charge_lines([*baseline, *load.transcripts], results, run.folder)
    for link in options.links:
        card.lines += _link_lines(link, [each for each in results if each.link == link], instances, run.folder)
    card.lines += pause_lines(load.transcripts, baseline, run.faults, detection_s=MAX_DETECTION_S)
    add_residue(card, residue)
    return card


async def _cut_all(run: FaultRun, relays: TcpRelays, options: PartitionOptions) -> list[PartitionResult]:
    results = []
    for number, direction in enumerate(options.cuts):
        for link in options.links:
            candidates = relays.between(*link)
            await asyncio.sleep(PAUSE_BETWEEN_S)
            relay = candidates[(options.seed + number) % len(candidates)]
            run.report_progress(f"{relay.ends.client} and {relay.ends.server} are cut off, {direction.value}")
            results.append(PartitionResult(await _cut_one(run, relay, direction), relay, link))
    return results


async def _cut_one(run: FaultRun, relay: TcpRelay, direction: CutDirection) -> InjectedFault:
    with run.injecting(relay.ends.server, direction.value) as fault:
        relay.cut(direction)
        try:
            await asyncio.sleep(CUT_S)
        finally:
            relay.restore()
        fault.has_taken_effect = relay.has_blocked_data
    return fault


def _charge_lines(
    transcripts: Sequence[TokenTranscript], results: Sequence[PartitionResult], folder: Path
) -> list[CardLine]:
    """Exact charges of requests that were never cut off from their edge, and the excess charges of the others."""
    cuts = [each.fault for each in results if each.link[0] == CLIENTS]
    is_cut_off = {
        each.request_id: any(cut.overlaps(each.started_at, each.ended_at) for cut in cuts) for each in transcripts
    }
    request_by_ticket = requests_by_ticket(folder)
    rows: tuple[list[LedgerCharge], list[LedgerCharge]] = ([], [])
    for row in read_ledger(folder):
        rows[is_cut_off.get(request_by_ticket.get(row.ticket_id, ""), False)].append(row)
    connected, cut_off = (
        check_charges(
            [each for each in transcripts if is_cut_off[each.request_id] == group], rows[group], request_by_ticket
        )
        for group in (False, True)
    )
    return [
        *charge_lines(connected),
        reported("requests active when their client was cut off", sum(is_cut_off.values())),
        exactly("of them: tokens seen and not charged", cut_off.undercharged_tokens, 0),
        exactly("of them: tickets charged twice", cut_off.double_charged_tickets, 0),
        reported("of them: tokens generated until the cut was detected", cut_off.overcharged_tokens),
        exactly("of them: prompts charged again", cut_off.double_charged_prompts, 0),
    ]


def _link_lines(
    link: tuple[str, str], results: Sequence[PartitionResult], instances: Mapping[str, str], folder: Path
) -> list[CardLine]:
    """The time until the process that opened the connection closed it; for clients, the pauses show it."""
    opener, server = link
    if opener == CLIENTS:
        return []
    downs = list(read_events(folder, opener, "link_down"))
    delays = [
        detection_delay(
            each.fault,
            (
                event
                for event in downs
                if event["process"].startswith(each.relay.ends.client)
                and event["peer"] == instances[each.relay.ends.server]
            ),
        )
        for each in results
    ]
    detected = [delay for delay in delays if delay is not None]
    return [
        reported(f"{opener} to {server}: cuts", len(results)),
        exactly(f"{opener} to {server}: cuts that no process detected", len(delays) - len(detected), 0),
        at_most(f"{opener} to {server}: detected after", max(detected, default=CUT_S), MAX_DETECTION_S, "s"),
    ]
