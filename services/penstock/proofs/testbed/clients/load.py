"""A closed loop of clients that keeps a transcript of every request."""

import asyncio
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from penstock.bench.drivers.driver import Driver
from penstock.bench.drivers.grpc import GrpcDriver
from penstock.bench.load import BenchRequest
from penstock.bench.run import run_closed_loop
from penstock.bench.transcript import TokenTranscript
from penstock.client import Client, Options
from penstock.proofs.requests import request_catalog, with_stop

REQUEST_TIMEOUT_S = 120.0  # s for one answer with all its attempts
BASELINE_CONCURRENCY = 4
REQUEST_NUMBERS = itertools.count(1)  # over all loads: a request id in the ledger and the logs is unique


class ClosedLoopLoad:
    """`streams` clients that send random requests of a catalog until `stop` is called."""

    def __init__(
        self,
        driver: Driver,
        requests: Sequence[BenchRequest],
        streams: int,
        seed: int,
        *,
        explain: bool = False,
        via: str = "",
        is_plain: bool = False,
        pause_after_failure: float = 0.0,
    ) -> None:
        """`explain`: request a timeline, for `stage_durations`. `via`, `is_plain`: as in `TokenTranscript`.

        `pause_after_failure`: s for which a client waits after a request that failed.
        """
        self.transcripts: list[TokenTranscript] = []
        self._driver = driver
        self._requests = requests
        self._streams = streams
        self._common_options = Options(timeout=REQUEST_TIMEOUT_S, explain=explain)
        self._via = via
        self._is_plain = is_plain
        self._pause_after_failure = pause_after_failure
        self._rng = random.Random(seed)
        self._is_stopped = False

    @property
    def tokens_received(self) -> int:
        return sum(transcript.tokens for transcript in self.transcripts)

    @property
    def active_requests(self) -> int:
        return sum(not transcript.ended_at for transcript in self.transcripts)

    @property
    def ended_requests(self) -> int:
        return len(self.transcripts) - self.active_requests

    @property
    def failed_requests(self) -> int:
        return sum(bool(transcript.failure_text) for transcript in self.transcripts)

    def stop(self) -> None:
        """Send no further request; active requests run to their end."""
        self._is_stopped = True

    async def run(self) -> None:
        await run_closed_loop(self._streams, self._next_requests(), self.send)

    def _next_requests(self) -> Iterator[BenchRequest]:
        while not self._is_stopped:
            yield self._rng.choice(self._requests)

    async def send(self, request: BenchRequest) -> None:
        request_id = f"proof-{next(REQUEST_NUMBERS)}"
        transcript = TokenTranscript(
            request.number, time.time(), request_id=request_id, via=self._via, is_plain=self._is_plain
        )
        self.transcripts.append(transcript)
        options = Options(**{**request.options, **self._common_options, "request_id": request_id})
        await self._driver.send(replace(request, options=options), transcript)
        if transcript.failure_text and self._pause_after_failure:
            await asyncio.sleep(self._pause_after_failure)


class Loads(ClosedLoopLoad):
    """Several loads that count as one."""

    def __init__(self, loads: Sequence[ClosedLoopLoad]) -> None:
        self._loads = loads

    @property
    def transcripts(self) -> list[TokenTranscript]:  # type: ignore[override]  # an attribute of a single load
        return [transcript for load in self._loads for transcript in load.transcripts]

    def stop(self) -> None:
        for load in self._loads:
            load.stop()

    async def run(self) -> None:
        await asyncio.gather(*(load.run() for load in self._loads))


async def run_baseline(
    client: Client, count: int, tokens: int, seed: int
) -> tuple[list[BenchRequest], list[TokenTranscript]]:
    """Answer a catalog without a fault, then half of its requests again with a stop string.

    Return all requests, and their transcripts in the same order.
    """
    catalog = request_catalog(count, tokens, seed)
    transcripts = await answer_all(client, catalog)
    # Of four requests in a row the first is greedy and the second is sampled.
    answers = [each.text for each in transcripts if each.number % 4 < 2 and each.text]
    sources = [catalog[each.number] for each in transcripts if each.number % 4 < 2 and each.text]
    stopped = [
        with_stop(request, text, number)
        for number, (request, text) in enumerate(zip(sources, answers, strict=True), start=count)
    ]
    return [*catalog, *stopped], [*transcripts, *await answer_all(client, stopped)]


async def answer_all(client: Client, requests: Sequence[BenchRequest]) -> list[TokenTranscript]:
    """Send each request once; return the transcripts in the order of their numbers."""
    load = ClosedLoopLoad(GrpcDriver([client], time.time), requests, 0, 0)
    await run_closed_loop(BASELINE_CONCURRENCY, iter(requests), load.send)
    return sorted(load.transcripts, key=lambda transcript: transcript.number)
