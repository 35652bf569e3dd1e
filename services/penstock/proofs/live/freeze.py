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
from penstock.local_mesh.processes import Child
from penstock.proofs.card import Card, Line, at_most, exactly, told
from penstock.proofs.checks.injected_faults import Fault, void_because
from penstock.proofs.checks.ledger import check_charges
from penstock.proofs.checks.transcript import check
from penstock.proofs.lines import charge_lines, finding_lines, pause_lines, residue_lines
from penstock.proofs.requests import catalog
from penstock.proofs.testbed.cpu_stress import strain, strain_lines
from penstock.proofs.testbed.load import Load, answer_calmly
from penstock.proofs.testbed.logs import events, ledger, requests_by_ticket, unix_time
from penstock.proofs.testbed.testbed import Rig, progress, rig, under_load, until_flowing

SETTINGS = ("PENSTOCK_WORKER_SIM_BASE_S=0.025",)
WISHES = 16
TIERS = ("worker", "scheduler", "queue", "auth")
FROZEN = 6.0  # s
BETWEEN = 4.0  # s
NOTICED = 2.0  # s; the promise


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeOptions:
    streams: int = 24
    tokens: int = 120  # of an answer, at most
    rounds: int = 2
    minutes: float = 1.0  # with every core busy and nothing frozen
    seed: int = 0


class Frozen(NamedTuple):
    fault: Fault
    instance_id: str
    tokens: int  # that clients got meanwhile
    ended: int  # requests that ended meanwhile


async def freeze(asked: FreezeOptions, mesh: MeshOptions, console: Console) -> Card:
    async with rig(mesh, console, settings=SETTINGS) as stage:
        stage.say("answering every request without a fault")
        wishes, calm = await answer_calmly(stage.client, catalog(WISHES, asked.tokens, asked.seed))
        load = Load(stage.client, wishes, asked.streams, asked.seed)
        async with under_load(load):
            frozen = await _freeze_all(stage, load, asked)
            faults = [each.fault for each in frozen]
            await asyncio.sleep(BETWEEN)  # for the last that stood still to find its peers
            busy = await strain(stage, load, faults, 60 * asked.minutes)
        residue = await stage.residue()
        folder = stage.mesh.folder
    findings = check(load.histories, calm.histories)
    charges = check_charges([*calm.histories, *load.histories], ledger(folder), requests_by_ticket(folder))
    card = Card(proof="freeze", void=void_because(faults, len(TIERS) * asked.rounds, asked.streams))
    card.lines += [*finding_lines(findings), *charge_lines(charges)]
    for tier in TIERS:
        card.lines += _tier_lines(tier, [each for each in frozen if each.fault.name.startswith(tier)], folder)
    card.lines += strain_lines(busy, folder)
    card.lines += [*pause_lines(load.histories, calm.histories, faults, unnoticed=NOTICED)]
    card.lines += residue_lines(residue)
    card.notes += [*findings.reasons[:10], *residue]
    return card


async def _freeze_all(stage: Rig, load: Load, asked: FreezeOptions) -> list[Frozen]:
    frozen: list[Frozen] = []
    await until_flowing(load, asked.streams)
    for number in range(asked.rounds):
        for tier in TIERS:
            replicas = [child for child in stage.mesh.processes.children if child.spec.tier == tier]
            before = load.tokens
            await asyncio.sleep(BETWEEN)
            victim = replicas[number % len(replicas)]
            done = progress(load, [each.fault for each in frozen], len(TIERS) * asked.rounds)
            stage.say(f"{victim.spec.name} stands still; {done}")
            frozen.append(await _freeze_one(stage, load, victim, load.tokens - before))
    return frozen


async def _freeze_one(stage: Rig, load: Load, victim: Child, tokens: int) -> Frozen:
    """Stop a process with its children for a while."""
    family = [victim.process.pid, *(each.pid for each in psutil.Process(victim.process.pid).children(recursive=True))]
    instance_id = await stage.instance_id(victim.spec.address)
    under_way, at = load.under_way, time.time()
    got, done = load.tokens, len(load.histories) - load.under_way
    for pid in family:
        os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(FROZEN)
        has_happened = psutil.Process(victim.process.pid).status() == psutil.STATUS_STOPPED
    finally:
        for pid in family:
            os.kill(pid, signal.SIGCONT)
    fault = Fault(
        name=victim.spec.name,
        kind="SIGSTOP",
        at=at,
        back_at=time.time(),
        has_happened=has_happened,
        under_way=under_way,
        tokens=tokens,
    )
    return Frozen(fault, instance_id, load.tokens - got, len(load.histories) - load.under_way - done)


def _tier_lines(tier: str, frozen: Sequence[Frozen], folder: Path) -> list[Line]:
    downs = [each for log in ("edge", "scheduler", "worker") for each in events(folder, log, "link_down")]
    delays = []
    for each in frozen:
        heard = [
            unix_time(down) - each.fault.at
            for down in downs
            if each.instance_id == down["peer"] and each.fault.at <= unix_time(down) < each.fault.back_at
        ]
        delays.append(heard)
    slowest = [max(heard) for heard in delays if heard]
    return [
        exactly(f"{tier}: freezes that nobody noticed", len(delays) - len(slowest), 0),
        at_most(f"{tier}: last peer noticed after", max(slowest, default=FROZEN), NOTICED, "s"),
        told(f"{tier}: tokens that flowed meanwhile", sum(each.tokens for each in frozen)),
        told(f"{tier}: requests that ended meanwhile", sum(each.ended for each in frozen)),
    ]
