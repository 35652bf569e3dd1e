"""Any process of any tier may die at any moment: no client notices more than a pause."""

import asyncio
import random
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console

from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import CardLine, ProofCard, reported
from penstock.proofs.checks.injected_faults import InjectedFault, void_reason
from penstock.proofs.checks.ledger import check_charges
from penstock.proofs.checks.transcript import TokenTranscript, check_transcripts
from penstock.proofs.lines import charge_lines, fault_summary, finding_lines, pause_lines, residue_lines
from penstock.proofs.requests import ProofRequest, request_catalog
from penstock.proofs.testbed.load import ClosedLoopLoad, run_baseline
from penstock.proofs.testbed.logs import read_ledger, requests_by_ticket
from penstock.proofs.testbed.testbed import Testbed, open_testbed, progress_text, under_load, wait_for_tokens

SETTINGS = ("PENSTOCK_WORKER_SIM_BASE_S=0.025",)  # 40 tokens/s and stream: two cores carry 64 of them and the restarts
CATALOG_SIZE = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class KillOptions:
    streams: int = 64
    kills: int = 20
    every: float = 3.0  # s
    tokens: int = 160  # of an answer, at most
    seed: int = 0


async def kill(options: KillOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    async with open_testbed(mesh, console, settings=SETTINGS) as stage:
        stage.report_progress("answering every request without a fault")
        wishes, calm = await run_baseline(stage.client, request_catalog(CATALOG_SIZE, options.tokens, options.seed))
        load = ClosedLoopLoad(stage.client, wishes, options.streams, options.seed)
        async with under_load(load):
            faults = await _kill_all(stage, load, options)
        residue = await stage.residue()
        folder = stage.mesh.folder
    findings = check_transcripts(load.transcripts, calm.transcripts)
    charges = check_charges([*calm.transcripts, *load.transcripts], read_ledger(folder), requests_by_ticket(folder))
    card = ProofCard(proof="kill", void_reason=void_reason(faults, options.kills, options.streams))
    card.lines += [*finding_lines(findings), *_request_mix_lines(load.transcripts, wishes), *charge_lines(charges)]
    card.lines += pause_lines(load.transcripts, calm.transcripts, faults)
    card.lines += residue_lines(residue)
    card.notes += [*findings.failure_reasons[:10], *residue, fault_summary(faults)]
    return card


def _request_mix_lines(transcripts: Sequence[TokenTranscript], requests: Sequence[ProofRequest]) -> Iterator[CardLine]:
    """How many of which kind were asked for: each kind is made again in another way."""
    options = [requests[each.request_index].options for each in transcripts]
    yield reported("of them greedy", sum(not each["temperature"] for each in options))
    yield reported("of them drawn with a seed", sum(bool(each["temperature"]) for each in options))
    yield reported("of them ended by a stop string", sum("stop" in each for each in options))


async def _kill_all(testbed: Testbed, load: ClosedLoopLoad, options: KillOptions) -> list[InjectedFault]:
    rng = random.Random(options.seed)
    faults: list[InjectedFault] = []
    await wait_for_tokens(load, options.streams)
    while len(faults) < options.kills:
        begun, tokens = faults[-1].injected_at if faults else time.time(), load.tokens_received
        await wait_for_tokens(load, 1)
        while time.time() < begun + options.every:
            testbed.report_progress(progress_text(load, faults, options.kills))
            await asyncio.sleep(0.25)
        faults.append(await _kill_one(testbed, load, rng, load.tokens_received - tokens))
    return faults


async def _kill_one(testbed: Testbed, load: ClosedLoopLoad, rng: random.Random, tokens: int) -> InjectedFault:
    """Kill any process, and start it again at once; one fault at a time, so it has to serve before the next."""
    victim = rng.choice(testbed.mesh.processes.children)
    under_way, at = load.active_requests, time.time()
    victim.process.kill()
    code = await victim.process.wait()
    again = await testbed.mesh.restart(victim.spec.name)
    return InjectedFault(
        name=victim.spec.name,
        kind="SIGKILL",
        injected_at=at,
        recovered_at=time.time(),
        has_taken_effect=code == -signal.SIGKILL and again.process.pid != victim.process.pid,
        active_requests=under_way,
        tokens_before=tokens,
    )
