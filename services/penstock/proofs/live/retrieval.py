"""An edge dies in mid-stream: its clients read on at another edge, byte by byte the same, and pay once.

The clients are plain HTTP clients of the Responses API, half with `background`, half with `store` alone. All streams of
one round are at one edge, which is killed at a random moment.
"""

import asyncio
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from penstock.bench.load import random_prompt
from penstock.bench.statistics import quantile
from penstock.bench.transcript import TokenTranscript
from penstock.local_mesh.plan import MeshOptions
from penstock.local_mesh.processes import ChildProcess
from penstock.proofs.card import ProofCard, at_most, charge_lines, exactly, reported
from penstock.proofs.checks.injected_faults import InjectedFault
from penstock.proofs.checks.ledger import check_charges
from penstock.proofs.testbed.clients.responses_client import StreamedResponse, stream_response
from penstock.proofs.testbed.faults.fault_run import add_residue
from penstock.proofs.testbed.logs import read_ledger, requests_by_ticket
from penstock.proofs.testbed.testbed import Testbed, open_testbed

SETTINGS = ("PENSTOCK_WORKER_SIM_BASE_S=0.025",)  # 40 tokens/s per stream
CATALOG_SIZE = 24
FIRST_EVENTS = 5  # of each stream, before its edge is killed
MAX_READ_GAP_S = 6.0  # the lease of an edge, and the time to find another one
CONTRACT = (
    "A client whose edge dies retrieves its response by its id, with the number of the last event that it has. Clients "
    "of streams that are not stored have to send their request again."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalOptions:
    streams: int = 10  # of each round
    kills: int = 20
    tokens: int = 160  # of an answer, at most
    seed: int = 0


async def retrieval(options: RetrievalOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    if mesh.edges < 2:
        return ProofCard(proof="retrieval", void_reason="it needs two edges: add --edges 2")
    async with open_testbed(mesh, console, settings=SETTINGS) as testbed:
        bodies = _catalog(testbed.mesh.options.model, options)
        testbed.report_progress("answering every request without a fault")
        baseline = await _baseline(testbed, bodies)
        rounds = _Rounds(testbed, bodies, options)
        for number in range(options.kills):
            await rounds.run(number)
        residue = await testbed.residue()
    responses, faults = rounds.responses, rounds.faults
    interrupted = [each for each in responses if each.breaks]
    identical = [each for each in responses if each.is_in_order and each.events == baseline[each.number].events]
    card = ProofCard(proof="retrieval", void_reason=_void_reason(faults, interrupted, options))
    card.lines += [
        reported("responses", len(responses)),
        reported("of them interrupted and read on elsewhere", len(interrupted)),
        exactly("client-visible failures", sum(bool(each.failure) for each in responses), 0),
        exactly("responses identical to a calm run", 100 * len(identical) / max(1, len(responses)), 100, "%"),
        at_most("longest time without an event", max(rounds.gaps, default=0.0), MAX_READ_GAP_S, "s"),
        reported("P50 of it", quantile(rounds.gaps, 0.5), "s"),
    ]
    every = [*baseline, *responses]
    charges = check_charges(
        map(_transcript, every), read_ledger(testbed.mesh.folder), requests_by_ticket(testbed.mesh.folder)
    )
    card.lines += charge_lines(charges)
    add_residue(card, residue)
    card.notes += [CONTRACT, *[each.failure for each in responses if each.failure][:5]]
    return card


def _catalog(model: str, options: RetrievalOptions) -> list[dict[str, Any]]:
    rng = random.Random(options.seed)
    bodies = []
    for number in range(CATALOG_SIZE):
        body = {
            "model": model,
            "input": random_prompt(rng.randint(16, 96), rng),
            "max_output_tokens": rng.randint(options.tokens // 2, options.tokens),
            "ignore_eos": True,
            "seed": number,
            "temperature": 0.9 if number % 2 else 0.0,
            "store": True,
        }
        bodies.append(body)
    return bodies


async def _baseline(testbed: Testbed, bodies: Sequence[dict[str, Any]]) -> list[StreamedResponse]:
    edges = [each.http for each in testbed.mesh.plan.processes_of("edge")]
    responses = [StreamedResponse(number) for number in range(len(bodies))]
    for response in responses:
        await stream_response(edges, testbed.mesh.api_key, bodies[response.number], response)
    failed = [each.failure for each in responses if each.failure]
    if failed:
        raise RuntimeError(f"{len(failed)} responses failed without a fault: {failed[0]}")
    return responses


class _Rounds:
    """Kills one edge after the other under streams of its own."""

    def __init__(self, testbed: Testbed, bodies: Sequence[dict[str, Any]], options: RetrievalOptions) -> None:
        self._testbed = testbed
        self._bodies = bodies
        self._options = options
        self._rng = random.Random(options.seed)
        self.responses: list[StreamedResponse] = []
        self.faults: list[InjectedFault] = []
        self.gaps: list[float] = []  # s from a kill to the next event of each interrupted stream

    async def run(self, number: int) -> None:
        edges = self._testbed.mesh.plan.processes_of("edge")
        victim = edges[number % len(edges)]
        others = [each.http for each in edges if each is not victim]
        self._rng.shuffle(others)
        new = [StreamedResponse(self._rng.randrange(len(self._bodies))) for _ in range(self._options.streams)]
        self.responses += new
        async with asyncio.TaskGroup() as group:
            for index, response in enumerate(new):
                body = {**self._bodies[response.number], "background": index % 2 == 0}
                group.create_task(stream_response([victim.http, *others], self._testbed.mesh.api_key, body, response))
            while any(len(each.events) < FIRST_EVENTS and not each.failure for each in new):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(self._rng.uniform(0.0, self._options.tokens * 0.5 * 0.025))
            await self._kill(self._testbed.mesh.processes.named(victim.name), new)

    async def _kill(self, child: ChildProcess, running: list[StreamedResponse]) -> None:
        before = [len(each.events) for each in running]
        waiting = [each for each in running if not each.is_over]
        fault = InjectedFault(
            name=child.spec.name,
            kind="SIGKILL",
            injected_at=time.time(),
            active_requests=len(waiting),
            tokens_before=sum(before),
        )
        child.process.kill()
        code = await child.process.wait()
        killed_at = time.monotonic()
        restarting = asyncio.ensure_future(self._testbed.mesh.restart(child.spec.name))
        counts = {id(each): len(each.events) for each in waiting}
        open_streams = list(waiting)
        while open_streams:
            await asyncio.sleep(0.02)
            for each in [each for each in open_streams if len(each.events) > counts[id(each)] or each.failure]:
                self.gaps.append(time.monotonic() - killed_at)
                open_streams.remove(each)
        restarted = await restarting
        fault.has_taken_effect = code == -signal.SIGKILL and restarted.is_alive
        fault.recovered_at = time.time()
        self.faults.append(fault)
        self._testbed.report_progress(
            f"killing edges; {len(self.faults)} of {self._options.kills}, {len(self.responses)} responses, "
            f"{sum(bool(each.failure) for each in self.responses)} failed"
        )


def _void_reason(
    faults: Sequence[InjectedFault], interrupted: Sequence[StreamedResponse], options: RetrievalOptions
) -> str:
    if not all(each.has_taken_effect for each in faults):
        return "a kill had no effect"
    if len(interrupted) < options.kills:
        return f"{len(interrupted)} streams were interrupted by {options.kills} kills: the answers are too short"
    return ""


def _transcript(response: StreamedResponse) -> TokenTranscript:
    request_id = response.response_id.removeprefix("resp_")
    return TokenTranscript(request_id=request_id, indexes=list(range(response.output_tokens)))
