"""Loads of the proof of regions: streams with their attempts, unary calls at a rate, and requests at random times."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.bench.load import BenchRequest, random_prompt
from penstock.bench.transcript import TokenTranscript, Transcript
from penstock.chassis.errors import PenstockError
from penstock.client import Client, Options

PROMPT_TOKENS = 24


class Resume(NamedTuple):
    """The first token of a later attempt."""

    at: float  # Unix s
    after_retry_s: float  # since the client's retry, the first one if several were needed


class ResumingDriver:
    """Satisfies `Driver` by one SDK client, and keeps the resumes of each answer by its request id."""

    def __init__(self, client: Client) -> None:
        self.resumes: dict[str, list[Resume]] = {}
        self._client = client

    async def send(self, request: BenchRequest, transcript: Transcript) -> None:
        assert isinstance(transcript, TokenTranscript)
        request_id, attempt = transcript.request_id, 1
        answer = self._client.generate(request.prompt, **request.options)
        try:
            async with answer:
                async for chunk in answer:
                    now = time.time()
                    if answer.attempts > attempt:
                        resume = Resume(now, time.monotonic() - answer.attempted_at[attempt])
                        self.resumes.setdefault(request_id, []).append(resume)
                        attempt = answer.attempts
                    transcript.record_chunk(now, chunk)
            transcript.finish(time.time(), answer.finished)
        except PenstockError as error:
            transcript.fail(time.time(), error)
        finally:
            transcript.is_accepted = answer.is_accepted
            transcript.attempts = answer.attempts


@dataclass(slots=True)
class UnaryCall:
    started_at: float  # Unix s, as the next
    ended_at: float = 0.0
    failure: str = ""

    @property
    def seconds(self) -> float:
        return self.ended_at - self.started_at


@dataclass(slots=True)
class UnaryLoad:
    """Makes `rate` calls/s, whether or not others have ended."""

    call: Callable[[], Awaitable[object]]
    rate: float
    calls: list[UnaryCall] = field(default_factory=list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Make calls during the block, and wait for the last ones after it."""
        stop = asyncio.Event()
        running = asyncio.create_task(self._run(stop))
        try:
            yield
        finally:
            stop.set()
            await running

    async def _run(self, stop: asyncio.Event) -> None:
        began_at, number = time.monotonic(), 0
        async with asyncio.TaskGroup() as group:
            while not stop.is_set():
                group.create_task(self._call())
                number += 1
                await asyncio.sleep(max(0.0, began_at + number / self.rate - time.monotonic()))

    async def _call(self) -> None:
        call = UnaryCall(time.time())
        self.calls.append(call)
        try:
            await self.call()
        except PenstockError as error:
            call.failure = f"{error.code.name} / {error.reason}: {error}"
        call.ended_at = time.time()

    @property
    def failures(self) -> list[str]:
        return [each.failure for each in self.calls if each.failure]


def random_requests(rate: float, seconds: float, tokens: int, seed: int) -> Iterator[BenchRequest]:
    """Yield requests with Poisson arrivals, whose answers all have `tokens` tokens."""
    rng, send_at = random.Random(seed), 0.0
    for number in range(round(rate * seconds)):
        send_at += rng.expovariate(rate)
        options = Options(max_output_tokens=tokens, ignore_eos=True, temperature=0.0)
        yield BenchRequest(number=number, prompt=random_prompt(PROMPT_TOKENS, rng), options=options, send_at=send_at)


def fixed_requests(count: int, tokens: int, seed: int) -> list[BenchRequest]:
    """Return requests for a closed loop."""
    return list(random_requests(1.0, count, tokens, seed))


def active_at(transcripts: Sequence[TokenTranscript], at: float) -> list[TokenTranscript]:
    """Return the transcripts of requests that were active at `at`, Unix s."""
    return [each for each in transcripts if each.started_at <= at < (each.ended_at or float("inf"))]
