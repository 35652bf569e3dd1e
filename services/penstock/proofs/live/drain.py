"""Every process of every tier is asked to end and started again, one after the other, and nobody notices."""

import asyncio
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from rich.console import Console

from penstock.local_mesh.plan import MeshOptions
from penstock.local_mesh.processes import Child
from penstock.proofs.card import Card, Line, at_most, exactly, percentile, told
from penstock.proofs.checks.injected_faults import Fault, void_because
from penstock.proofs.checks.ledger import check_charges
from penstock.proofs.checks.transcript import History, check
from penstock.proofs.lines import charge_lines, finding_lines, pause_lines, residue_lines, tally
from penstock.proofs.requests import catalog
from penstock.proofs.testbed.idle_start import start_idly
from penstock.proofs.testbed.load import Load, answer_calmly
from penstock.proofs.testbed.logs import ledger, requests_by_ticket
from penstock.proofs.testbed.testbed import Rig, progress, rig, under_load, until_flowing

SLOTS = 8  # of a worker
SETTINGS = (f"PENSTOCK_WORKER_SLOTS={SLOTS}", "PENSTOCK_WORKER_SIM_BASE_S=0.025")
SHARE = 0.8  # of what the workers carry while one of them is away
WISHES = 16
CALM = 12.0  # s of the same load before, to compare with
STORIES = 4
TELLING = 0.001  # s
TTFT_RATIO = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOptions:
    streams: int = 0  # 0: at 0.8 of capacity
    tokens: int = 40  # of an answer, at most
    rounds: int = 1
    seed: int = 0


async def drain(asked: DrainOptions, mesh: MeshOptions, console: Console) -> Card:
    streams = asked.streams or max(1, round(SHARE * SLOTS * max(1, mesh.workers - 1)))
    async with rig(mesh, console, settings=SETTINGS) as stage:
        stage.say("answering every request without a fault")
        wishes, calm = await answer_calmly(stage.client, catalog(WISHES, asked.tokens, asked.seed))
        load = Load(stage.client, wishes, streams, asked.seed, explain=True)
        async with under_load(load):
            await until_flowing(load, streams)
            marks = [time.time()]
            stage.say("the same load, and nothing else happens")
            await asyncio.sleep(CALM)
            marks.append(time.time())
            stage.say("processes start that join nothing")
            await start_idly([each.spec for each in stage.mesh.processes.children], stage.mesh.folder)
            marks.append(time.time())
            faults, codes = await _roll(stage, load, asked.rounds)
            marks.append(time.time())
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
    spans = [_begun(load.histories, *span) for span in pairwise(marks)]
    card.lines += [*first_token_lines(*spans), *pause_lines(load.histories, calm.histories, faults)]
    card.lines += residue_lines(residue)
    card.notes += [*findings.reasons[:10], *residue, tally(faults)]
    card.notes += [*_slowest(load.histories, faults), *_stories(spans[-1])]
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


def _begun(histories: list[History], begin: float, end: float) -> list[History]:
    """Return those that began within a span, and came to a first token."""
    return [each for each in histories if each.ttft and begin <= each.started < end]


def first_token_lines(calm: list[History], idle: list[History], rolling: list[History]) -> list[Line]:
    """TTFT while one process after the other was away, against those of the calm before.

    A process that starts takes its share of the cores, whatever it joins; where they are few, that is told apart.
    """
    before, beside, during = (percentile(_ttfts(each), 0.99) for each in (calm, idle, rolling))
    return [
        told("requests in the calm", len(calm)),
        told("requests while processes were rolled", len(rolling)),
        told("P99 TTFT calm", before, "s"),
        told("P99 TTFT while processes start that join nothing", beside, "s"),
        told("P99 TTFT rolling", during, "s"),
        told("P50 TTFT ratio", percentile(_ttfts(rolling), 0.5) / max(1e-9, percentile(_ttfts(calm), 0.5))),
        told("P99 TTFT ratio to mere starts", during / max(1e-9, beside)),
        at_most("P99 TTFT ratio", during / max(1e-9, before), TTFT_RATIO),
    ]


def _ttfts(histories: list[History]) -> list[float]:
    return [each.ttft or 0.0 for each in histories]


def _slowest(histories: list[History], faults: list[Fault]) -> Iterator[str]:
    """Which process's absence made whom wait."""
    for fault in faults:
        waits = [each.ttft for each in histories if each.ttft and fault.covers(each.started, each.arrivals[0])]
        yield f"{fault.name} away for {fault.back_at - fault.at:.1f} s: slowest TTFT {max(waits, default=0.0):.3f} s"


def _stories(rolling: list[History]) -> Iterator[str]:
    """Where the slowest first tokens spent their time."""
    for each in sorted(rolling, key=lambda each: -(each.ttft or 0.0))[:STORIES]:
        known = sum(each.stages.values())
        stages = ", ".join(f"{name} {1e3 * took:.0f}" for name, took in each.stages.items() if took >= TELLING)
        rest = 1e3 * ((each.ttft or 0.0) - known)
        yield f"first token after {1e3 * (each.ttft or 0.0):.0f} ms: {stages}, on the way {rest:.0f}"
