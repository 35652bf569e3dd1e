"""Every process of every tier is asked to end and started again, one after the other, and nobody notices."""

import asyncio
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console

from penstock.cli.plan import MeshOptions
from penstock.cli.processes import Child
from penstock.cli.scorecard.card import Card, Line, at_most, exactly, percentile, told
from penstock.cli.scorecard.catalog import catalog
from penstock.cli.scorecard.charges import check_charges
from penstock.cli.scorecard.faults import Fault, void_because
from penstock.cli.scorecard.history import History, check
from penstock.cli.scorecard.load import Load, answer_calmly
from penstock.cli.scorecard.logs import ledger, requests_by_ticket
from penstock.cli.scorecard.rig import Rig, progress, rig, under_load, until_flowing
from penstock.cli.scorecard.verdicts import charge_lines, finding_lines, pause_lines, residue_lines, tally

SLOTS = 8  # of a worker
SETTINGS = (f"PENSTOCK_WORKER_SLOTS={SLOTS}", "PENSTOCK_WORKER_SIM_BASE_S=0.025")
SHARE = 0.8  # of what the workers carry while one of them is away
WISHES = 16
CALM = 8.0  # s of the same load before, to compare with
TTFT_RATIO = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOptions:
    streams: int = 0  # 0: at 0.8 of capacity
    tokens: int = 80  # of an answer, at most
    rounds: int = 1
    seed: int = 0


async def drain(asked: DrainOptions, mesh: MeshOptions, console: Console) -> Card:
    streams = asked.streams or max(1, round(SHARE * SLOTS * max(1, mesh.workers - 1)))
    async with rig(mesh, console, settings=SETTINGS) as stage:
        stage.say("answering every request without a fault")
        wishes, calm = await answer_calmly(stage.client, catalog(WISHES, asked.tokens, asked.seed))
        load = Load(stage.client, wishes, streams, asked.seed)
        async with under_load(load):
            await until_flowing(load, streams)
            began = time.time()
            await asyncio.sleep(CALM)
            faults, codes = await _roll(stage, load, asked.rounds)
        residue = await stage.residue()
        folder = stage.mesh.folder
    findings = check(load.histories, calm.histories)
    charges = check_charges([*calm.histories, *load.histories], ledger(folder), requests_by_ticket(folder))
    card = Card(proof="drain", void=void_because(faults, len(faults), streams))
    card.lines += [
        told("streams", streams),
        exactly("processes that did not exit 0", sum(map(bool, codes.values())), 0),
    ]
    card.lines += [*finding_lines(findings), *charge_lines(charges)]
    card.lines += [*_first_tokens(load.histories, began, faults), *pause_lines(load.histories, calm.histories, faults)]
    card.lines += residue_lines(residue)
    card.notes += [*findings.reasons[:10], *residue, tally(faults)]
    card.notes += _slowest(load.histories, faults)
    card.notes += [f"{name} ended with {code}" for name, code in codes.items() if code]
    return card


async def _roll(stage: Rig, load: Load, rounds: int) -> tuple[list[Fault], dict[str, int]]:
    faults: list[Fault] = []
    codes: dict[str, int] = {}
    victims = list(stage.mesh.processes.children) * rounds
    for victim in victims:
        stage.say(f"{victim.spec.name} drains; {progress(load, faults, len(victims))}")
        before = load.tokens
        await until_flowing(load, 1)
        faults.append(await _drain_one(stage, load, stage.mesh.processes.named(victim.spec.name), codes, before))
    return faults, codes


async def _drain_one(stage: Rig, load: Load, victim: Child, codes: dict[str, int], tokens: int) -> Fault:
    under_way, at, flowed = load.under_way, time.time(), load.tokens - tokens
    victim.process.send_signal(signal.SIGTERM)
    codes[victim.spec.name] = await victim.process.wait()
    again = await stage.mesh.restart(victim.spec.name)
    return Fault(
        name=victim.spec.name,
        kind="SIGTERM",
        at=at,
        back_at=time.time(),
        has_happened=again.process.pid != victim.process.pid,
        under_way=under_way,
        tokens=flowed,
    )


def _first_tokens(histories: list[History], began: float, faults: list[Fault]) -> list[Line]:
    """TTFT of requests that began while a process was away, against those of the calm before."""
    calm = [each.ttft for each in histories if each.ttft and began <= each.started and each.ended < faults[0].at]
    rolling = [each.ttft for each in histories if each.ttft and each.started >= faults[0].at]
    before, during = percentile(calm, 0.99), percentile(rolling, 0.99)
    return [
        told("P99 TTFT calm", before, "s"),
        told("P99 TTFT rolling", during, "s"),
        told("P50 TTFT ratio", percentile(rolling, 0.5) / max(1e-9, percentile(calm, 0.5))),
        at_most("P99 TTFT ratio", during / max(1e-9, before), TTFT_RATIO),
    ]


def _slowest(histories: list[History], faults: list[Fault]) -> Iterator[str]:
    """Which process's absence made whom wait."""
    for fault in faults:
        waits = [each.ttft for each in histories if each.ttft and fault.covers(each.started, each.arrivals[0])]
        yield f"{fault.name} away for {fault.back_at - fault.at:.1f} s: slowest TTFT {max(waits, default=0.0):.3f} s"
