"""Clients that ask, one request after the other, through the shipped SDK."""

import asyncio
import itertools
import random
import time
from collections.abc import Sequence

from penstock.chassis.errors import PenstockError
from penstock.client import Client
from penstock.client.retries import CONNECTION_LOST
from penstock.proofs.checks.transcript import TokenTranscript
from penstock.proofs.requests import ProofRequest, with_stop
from penstock.proofs.testbed.plain_clients import PlainClient
from penstock.v1.inference_pb2 import FinishReason, Timeline

REQUEST_TIMEOUT_S = 120.0  # s for one answer with all its attempts; an answer later than that is a failure
BASELINE_CONCURRENCY = 4
REQUEST_NUMBERS = itertools.count(1)  # of requests, over all loads: the ledger knows them by nothing else


class ClosedLoopLoad:
    """`streams` clients in a closed loop, for as long as nobody says stop. Histories of all requests are kept."""

    def __init__(
        self,
        client: Client | PlainClient,
        requests: Sequence[ProofRequest],
        streams: int,
        seed: int,
        *,
        explain: bool = False,
        via: str = "",
    ) -> None:
        """`explain`: request a timeline, for `TokenTranscript.stage_durations`. `via`: as `TokenTranscript.via`."""
        self.transcripts: list[TokenTranscript] = []
        self.tokens_received = 0
        self._client = client
        self._requests = requests
        self._streams = streams
        self._explain = explain
        self._via = via
        self._rng = random.Random(seed)
        self._stop_requested = asyncio.Event()

    @property
    def active_requests(self) -> int:
        return sum(not history.ended_at for history in self.transcripts)

    @property
    def failed_requests(self) -> int:
        return sum(bool(history.failure_text) for history in self.transcripts)

    def stop(self) -> None:
        """Ask nothing more; what is under way goes on to its end."""
        self._stop_requested.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._streams):
                group.create_task(self._run_client())

    async def _run_client(self) -> None:
        while not self._stop_requested.is_set():
            await self.send(self._rng.randrange(len(self._requests)))

    async def send(self, request_index: int) -> TokenTranscript:
        wish = self._requests[request_index]
        history = TokenTranscript(
            request_index=request_index,
            request_id=f"score-{next(REQUEST_NUMBERS)}",
            started_at=time.time(),
            via=self._via,
            is_plain=isinstance(self._client, PlainClient),
        )
        self.transcripts.append(history)
        options = {
            **wish.options,
            "request_id": history.request_id,
            "timeout": REQUEST_TIMEOUT_S,
            "explain": self._explain,
        }
        answer = self._client.generate(wish.prompt, **options)  # type: ignore[arg-type]  # Options and two more
        try:
            async with answer:
                async for piece in answer:
                    history.record(time.time(), piece.first_index, piece.token_ids, piece.text)
                    self.tokens_received += len(piece.token_ids)
            history.finish_reason = FinishReason.Name(answer.finished.reason) + answer.finished.stop_string
            history.usage_tokens = answer.finished.usage.output_tokens
            history.stage_durations = stages_before_decode(answer.finished.timeline)
        except PenstockError as error:
            history.failure_text = f"{error.code.name} / {error.reason}: {error}"
            history.lost_connection = error.reason == CONNECTION_LOST
        history.attempts, history.ended_at = answer.attempts, time.time()
        return history


class Loads:
    """Several loads at once, which count as one."""

    def __init__(self, loads: Sequence[ClosedLoopLoad]) -> None:
        self._loads = loads

    @property
    def transcripts(self) -> list[TokenTranscript]:
        return [history for load in self._loads for history in load.transcripts]

    @property
    def tokens_received(self) -> int:
        return sum(load.tokens_received for load in self._loads)

    @property
    def active_requests(self) -> int:
        return sum(load.active_requests for load in self._loads)

    @property
    def failed_requests(self) -> int:
        return sum(load.failed_requests for load in self._loads)

    def stop(self) -> None:
        for load in self._loads:
            load.stop()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for load in self._loads:
                group.create_task(load.run())


def stages_before_decode(timeline: Timeline) -> dict[str, float]:
    """Seconds of each stretch up to the first token, by tier and name; of the last run alone what it did."""
    found: dict[str, float] = {}
    for stage in timeline.stages:
        if stage.name == "decode":
            return found
        found[f"{stage.tier} {stage.name}"] = stage.length.ToTimedelta().total_seconds()
    return found


async def run_baseline(client: Client, requests: Sequence[ProofRequest]) -> tuple[list[ProofRequest], ClosedLoopLoad]:
    """Have every wish answered without a fault, then half of them, greedy and drawn, once more with a stop string.

    Returns all wishes; the load's histories are theirs, in the same order.
    """
    gate = asyncio.Semaphore(BASELINE_CONCURRENCY)
    plain = await _send_all(ClosedLoopLoad(client, requests, 0, 0), range(len(requests)), gate)
    stopped = [
        with_stop(requests[each.request_index], each.text)
        for each in plain.transcripts
        if each.request_index % 4 < 2 and each.text
    ]
    every = [*requests, *stopped]
    load = ClosedLoopLoad(client, every, 0, 0)
    load.transcripts = plain.transcripts
    return every, await _send_all(load, range(len(requests), len(every)), gate)


async def _send_all(
    load: ClosedLoopLoad, request_indexes: Sequence[int], semaphore: asyncio.Semaphore
) -> ClosedLoopLoad:
    async def one(number: int) -> None:
        async with semaphore:
            await load.send(number)

    async with asyncio.TaskGroup() as group:
        for number in request_indexes:
            group.create_task(one(number))
    load.transcripts.sort(key=lambda history: history.request_index)
    return load
