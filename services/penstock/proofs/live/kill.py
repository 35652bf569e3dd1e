"""Any process of any tier may die at any moment: no client notices more than a pause."""

import asyncio
import random
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console

from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import Card, Line, told
from penstock.proofs.checks.injected_faults import Fault, void_because
from penstock.proofs.checks.ledger import check_charges
from penstock.proofs.checks.transcript import History, check
from penstock.proofs.lines import charge_lines, finding_lines, pause_lines, residue_lines, tally
from penstock.proofs.requests import Wish, catalog
from penstock.proofs.testbed.load import Load, answer_calmly
from penstock.proofs.testbed.logs import ledger, requests_by_ticket
from penstock.proofs.testbed.testbed import Rig, progress, rig, under_load, until_flowing

SETTINGS = ("PENSTOCK_WORKER_SIM_BASE_S=0.025",)  # 40 tokens/s and stream: two cores carry 64 of them and the restarts
WISHES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class KillOptions:
    streams: int = 64
    kills: int = 20
    every: float = 3.0  # s
    tokens: int = 160  # of an answer, at most
    seed: int = 0


async def kill(asked: KillOptions, mesh: MeshOptions, console: Console) -> Card:
    async with rig(mesh, console, settings=SETTINGS) as stage:
        stage.say("answering every request without a fault")
        wishes, calm = await answer_calmly(stage.client, catalog(WISHES, asked.tokens, asked.seed))
        load = Load(stage.client, wishes, asked.streams, asked.seed)
        async with under_load(load):
            faults = await _storm(stage, load, asked)
        residue = await stage.residue()
        folder = stage.mesh.folder
    findings = check(load.histories, calm.histories)
    charges = check_charges([*calm.histories, *load.histories], ledger(folder), requests_by_ticket(folder))
    card = Card(proof="kill", void=void_because(faults, asked.kills, asked.streams))
    card.lines += [*finding_lines(findings), *_mix(load.histories, wishes), *charge_lines(charges)]
    card.lines += pause_lines(load.histories, calm.histories, faults)
    card.lines += residue_lines(residue)
    card.notes += [*findings.reasons[:10], *residue, tally(faults)]
    return card


def _mix(histories: Sequence[History], wishes: Sequence[Wish]) -> Iterator[Line]:
    """How many of which kind were asked for: each kind is made again in another way."""
    options = [wishes[each.wish].options for each in histories]
    yield told("of them greedy", sum(not each["temperature"] for each in options))
    yield told("of them drawn with a seed", sum(bool(each["temperature"]) for each in options))
    yield told("of them ended by a stop string", sum("stop" in each for each in options))


async def _storm(stage: Rig, load: Load, asked: KillOptions) -> list[Fault]:
    rng = random.Random(asked.seed)
    faults: list[Fault] = []
    await until_flowing(load, asked.streams)
    while len(faults) < asked.kills:
        begun, tokens = faults[-1].at if faults else time.time(), load.tokens
        await until_flowing(load, 1)
        while time.time() < begun + asked.every:
            stage.say(progress(load, faults, asked.kills))
            await asyncio.sleep(0.25)
        faults.append(await _kill_one(stage, load, rng, load.tokens - tokens))
    return faults


async def _kill_one(stage: Rig, load: Load, rng: random.Random, tokens: int) -> Fault:
    """Kill any process, and start it again at once; one fault at a time, so it has to serve before the next."""
    victim = rng.choice(stage.mesh.processes.children)
    under_way, at = load.under_way, time.time()
    victim.process.kill()
    code = await victim.process.wait()
    again = await stage.mesh.restart(victim.spec.name)
    return Fault(
        name=victim.spec.name,
        kind="SIGKILL",
        at=at,
        back_at=time.time(),
        has_happened=code == -signal.SIGKILL and again.process.pid != victim.process.pid,
        under_way=under_way,
        tokens=tokens,
    )
