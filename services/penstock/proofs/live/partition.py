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
from penstock.proofs.card import Card, Line, at_most, exactly, told
from penstock.proofs.checks.injected_faults import Fault, void_because
from penstock.proofs.checks.ledger import Charge, check_charges
from penstock.proofs.checks.transcript import History, check
from penstock.proofs.lines import charge_lines, finding_lines, pause_lines, residue_lines
from penstock.proofs.requests import catalog
from penstock.proofs.testbed.load import Load, answer_calmly
from penstock.proofs.testbed.logs import events, ledger, requests_by_ticket, unix_time
from penstock.proofs.testbed.tcp_relays import CLIENTS, Cut, Wire, Wires
from penstock.proofs.testbed.testbed import Rig, progress, rig, under_load, until_flowing

SETTINGS = ("PENSTOCK_WORKER_SIM_BASE_S=0.025",)
WISHES = 16
LINKS = (
    ("edge", "worker"),
    ("worker", "scheduler"),
    ("scheduler", "queue"),
    ("edge", "queue"),
    ("edge", "auth"),
    (CLIENTS, "edge"),
)
CUT_FOR = 5.0  # s
BETWEEN = 3.0  # s
NOTICED = 2.0  # s; the promise


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOptions:
    streams: int = 24
    tokens: int = 120  # of an answer, at most
    links: Sequence[tuple[str, str]] = LINKS
    cuts: Sequence[Cut] = tuple(Cut)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Parted:
    fault: Fault
    wire: Wire
    link: tuple[str, str]


async def partition(asked: PartitionOptions, mesh: MeshOptions, console: Console) -> Card:
    async with AsyncExitStack() as stack:
        laid = Wires(stack)
        stage = await stack.enter_async_context(rig(mesh, console, settings=SETTINGS, wires=laid))
        stage.say("answering every request without a fault")
        wishes, calm = await answer_calmly(stage.client, catalog(WISHES, asked.tokens, asked.seed))
        load = Load(stage.client, wishes, asked.streams, asked.seed)
        async with under_load(load):
            parted = await _part_all(stage, laid, load, asked)
            await asyncio.sleep(BETWEEN)  # for the last that were apart to find one another
        residue = await stage.residue()
        instances = {each.name: await stage.instance_id(each.address) for each in stage.mesh.plan.processes}
        folder = stage.mesh.folder
    faults = [each.fault for each in parted]
    findings = check(load.histories, calm.histories)
    card = Card(proof="partition", void=void_because(faults, len(asked.links) * len(asked.cuts), asked.streams))
    card.lines += finding_lines(findings)
    card.lines += _charge_lines([*calm.histories, *load.histories], parted, folder)
    for link in asked.links:
        card.lines += _link_lines(link, [each for each in parted if each.link == link], instances, folder)
    card.lines += [*pause_lines(load.histories, calm.histories, faults, unnoticed=NOTICED), *residue_lines(residue)]
    card.notes += [*findings.reasons[:10], *residue]
    return card


async def _part_all(stage: Rig, laid: Wires, load: Load, asked: PartitionOptions) -> list[Parted]:
    parted: list[Parted] = []
    await until_flowing(load, asked.streams)
    for number, cut in enumerate(asked.cuts):
        for link in asked.links:
            between = laid.of(*link)
            before = load.tokens
            await asyncio.sleep(BETWEEN)
            wire = between[(asked.seed + number) % len(between)]
            done = progress(load, [each.fault for each in parted], len(asked.links) * len(asked.cuts))
            stage.say(f"{wire.ends.opener} and {wire.ends.server} are cut off, {cut.value}; {done}")
            parted.append(Parted(await _part_one(load, wire, cut, load.tokens - before), wire, link))
    return parted


async def _part_one(load: Load, wire: Wire, cut: Cut, tokens: int) -> Fault:
    at, under_way = time.time(), load.under_way
    wire.cut(cut)
    try:
        await asyncio.sleep(CUT_FOR)
    finally:
        wire.mend()
    return Fault(
        name=wire.ends.server,
        kind=cut.value,
        at=at,
        back_at=time.time(),
        has_happened=wire.has_held_back,
        under_way=under_way,
        tokens=tokens,
    )


def _charge_lines(histories: Sequence[History], parted: Sequence[Parted], folder: Path) -> list[Line]:
    """Of requests that were never cut off from their edge; and what the others were charged beyond what they saw."""
    cuts = [each.fault for each in parted if each.link[0] == CLIENTS]
    is_apart = {each.request_id: any(cut.covers(each.started, each.ended) for cut in cuts) for each in histories}
    request_of = requests_by_ticket(folder)
    rows: tuple[list[Charge], list[Charge]] = ([], [])
    for row in ledger(folder):
        rows[is_apart.get(request_of.get(row.ticket_id, ""), False)].append(row)
    whole = check_charges([each for each in histories if not is_apart[each.request_id]], rows[False], request_of)
    apart = check_charges([each for each in histories if is_apart[each.request_id]], rows[True], request_of)
    return [
        *charge_lines(whole),
        told("requests under way at a client's cut", sum(is_apart.values())),
        exactly("of theirs: tokens seen and not charged", apart.undercharged, 0),
        exactly("of theirs: tickets charged twice", apart.doubled, 0),
        told("of theirs: tokens made for nobody until that was noticed", apart.overcharged),
        told("of theirs: prompts charged again", apart.prompts_again),
    ]


def _link_lines(
    link: tuple[str, str], parted: Sequence[Parted], instances: Mapping[str, str], folder: Path
) -> list[Line]:
    """When those that had opened the connection gave it up; what clients do is seen by what they miss."""
    opener, server = link
    if opener == CLIENTS:
        return []
    downs = list(events(folder, opener, "link_down"))
    delays = [
        [
            unix_time(down) - each.fault.at
            for down in downs
            if down["process"].startswith(each.wire.ends.opener)
            and down["peer"] == instances[each.wire.ends.server]
            and each.fault.at <= unix_time(down) < each.fault.back_at
        ]
        for each in parted
    ]
    slowest = [max(heard) for heard in delays if heard]
    return [
        told(f"{opener} to {server}: cuts", len(parted)),
        exactly(f"{opener} to {server}: cuts that nobody noticed", len(delays) - len(slowest), 0),
        at_most(f"{opener} to {server}: noticed after", max(slowest, default=CUT_FOR), NOTICED, "s"),
    ]
