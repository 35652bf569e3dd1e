"""Links cut, both ways or one, with every connection left open: noticed, worked around, nothing stale afterwards.

A client that is cut off from its edge asks another to go on. What the first makes until it notices is paid for, as
with any client that leaves, and so is the prompt of a client that was cut off before it knew its answer's name; both
are told. Charges of all other requests are exact.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import CardLine, ProofCard, at_most, exactly, reported
from penstock.proofs.checks.injected_faults import InjectedFault, void_reason
from penstock.proofs.checks.ledger import LedgerCharge, check_charges
from penstock.proofs.checks.transcript import TokenTranscript, check_transcripts
from penstock.proofs.lines import charge_lines, finding_lines, pause_lines, residue_lines
from penstock.proofs.requests import request_catalog
from penstock.proofs.testbed.load import ClosedLoopLoad, run_baseline
from penstock.proofs.testbed.logs import read_events, read_ledger, requests_by_ticket, unix_time
from penstock.proofs.testbed.tcp_relays import CLIENTS, CutDirection, TcpRelay, TcpRelays
from penstock.proofs.testbed.testbed import Testbed, open_testbed, progress_text, under_load, wait_for_tokens

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
    async with AsyncExitStack() as stack:
        laid = TcpRelays(stack)
        stage = await stack.enter_async_context(open_testbed(mesh, console, settings=SETTINGS, relays=laid))
        stage.report_progress("answering every request without a fault")
        wishes, calm = await run_baseline(stage.client, request_catalog(CATALOG_SIZE, options.tokens, options.seed))
        load = ClosedLoopLoad(stage.client, wishes, options.streams, options.seed)
        async with under_load(load):
            parted = await _cut_all(stage, laid, load, options)
            await asyncio.sleep(PAUSE_BETWEEN_S)  # for the last that were apart to find one another
        residue = await stage.residue()
        instances = {each.name: await stage.instance_id(each.address) for each in stage.mesh.plan.processes}
        folder = stage.mesh.folder
    faults = [each.fault for each in parted]
    findings = check_transcripts(load.transcripts, calm.transcripts)
    card = ProofCard(
        proof="partition", void_reason=void_reason(faults, len(options.links) * len(options.cuts), options.streams)
    )
    card.lines += finding_lines(findings)
    card.lines += _charge_lines([*calm.transcripts, *load.transcripts], parted, folder)
    for link in options.links:
        card.lines += _link_lines(link, [each for each in parted if each.link == link], instances, folder)
    card.lines += [
        *pause_lines(load.transcripts, calm.transcripts, faults, detection_s=MAX_DETECTION_S),
        *residue_lines(residue),
    ]
    card.notes += [*findings.failure_reasons[:10], *residue]
    return card


async def _cut_all(
    testbed: Testbed, relays: TcpRelays, load: ClosedLoopLoad, options: PartitionOptions
) -> list[PartitionResult]:
    parted: list[PartitionResult] = []
    await wait_for_tokens(load, options.streams)
    for number, cut in enumerate(options.cuts):
        for link in options.links:
            between = relays.between(*link)
            before = load.tokens_received
            await asyncio.sleep(PAUSE_BETWEEN_S)
            wire = between[(options.seed + number) % len(between)]
            done = progress_text(load, [each.fault for each in parted], len(options.links) * len(options.cuts))
            testbed.report_progress(f"{wire.ends.client} and {wire.ends.server} are cut off, {cut.value}; {done}")
            parted.append(PartitionResult(await _cut_one(load, wire, cut, load.tokens_received - before), wire, link))
    return parted


async def _cut_one(load: ClosedLoopLoad, relay: TcpRelay, direction: CutDirection, tokens: int) -> InjectedFault:
    at, under_way = time.time(), load.active_requests
    relay.cut(direction)
    try:
        await asyncio.sleep(CUT_S)
    finally:
        relay.restore()
    return InjectedFault(
        name=relay.ends.server,
        kind=direction.value,
        injected_at=at,
        recovered_at=time.time(),
        has_taken_effect=relay.has_blocked_data,
        active_requests=under_way,
        tokens_before=tokens,
    )


def _charge_lines(
    transcripts: Sequence[TokenTranscript], results: Sequence[PartitionResult], folder: Path
) -> list[CardLine]:
    """Of requests that were never cut off from their edge; and what the others were charged beyond what they saw."""
    cuts = [each.fault for each in results if each.link[0] == CLIENTS]
    is_apart = {
        each.request_id: any(cut.overlaps(each.started_at, each.ended_at) for cut in cuts) for each in transcripts
    }
    request_of = requests_by_ticket(folder)
    rows: tuple[list[LedgerCharge], list[LedgerCharge]] = ([], [])
    for row in read_ledger(folder):
        rows[is_apart.get(request_of.get(row.ticket_id, ""), False)].append(row)
    whole = check_charges([each for each in transcripts if not is_apart[each.request_id]], rows[False], request_of)
    apart = check_charges([each for each in transcripts if is_apart[each.request_id]], rows[True], request_of)
    return [
        *charge_lines(whole),
        reported("requests under way at a client's cut", sum(is_apart.values())),
        exactly("of theirs: tokens seen and not charged", apart.undercharged_tokens, 0),
        exactly("of theirs: tickets charged twice", apart.double_charged_tickets, 0),
        reported("of theirs: tokens made for nobody until that was noticed", apart.overcharged_tokens),
        reported("of theirs: prompts charged again", apart.double_charged_prompts),
    ]


def _link_lines(
    link: tuple[str, str], results: Sequence[PartitionResult], instances: Mapping[str, str], folder: Path
) -> list[CardLine]:
    """When those that had opened the connection gave it up; what clients do is seen by what they miss."""
    opener, server = link
    if opener == CLIENTS:
        return []
    downs = list(read_events(folder, opener, "link_down"))
    delays = [
        [
            unix_time(down) - each.fault.injected_at
            for down in downs
            if down["process"].startswith(each.relay.ends.client)
            and down["peer"] == instances[each.relay.ends.server]
            and each.fault.injected_at <= unix_time(down) < each.fault.recovered_at
        ]
        for each in results
    ]
    slowest = [max(heard) for heard in delays if heard]
    return [
        reported(f"{opener} to {server}: cuts", len(results)),
        exactly(f"{opener} to {server}: cuts that nobody noticed", len(delays) - len(slowest), 0),
        at_most(f"{opener} to {server}: noticed after", max(slowest, default=CUT_S), MAX_DETECTION_S, "s"),
    ]
