"""Three ways to ask for the same: a call of its own, a session that all share, HTTP. What came of it is its history."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import MappingProxyType
from typing import Protocol

import httpx
import orjson

from penstock.bench.sse import DATA_PREFIX, REJECTION_CODES
from penstock.bench.transcript import OK, Transcript
from penstock.chassis.errors import PenstockError
from penstock.client import Client, RetryPolicy
from penstock.client.session import Session
from penstock.proofs.testbed.testbed import Testbed
from penstock.simulator.traffic.demand import OfferedRequest

NO_RETRIES = RetryPolicy(max_attempts=1)
TIMEOUT_S = 120.0  # s; nothing waits for longer
STREAM_END_LINE = "data: [DONE]"


class RequestDriver(Protocol):
    """Asks once and reads to the end; never raises for what the mesh answers. `began` is the zero of a history's s."""

    async def __call__(self, request: OfferedRequest, transcript: Transcript, run_started_at: float) -> None: ...


class OpenDriver(Protocol):
    def __call__(self, testbed: Testbed) -> AbstractAsyncContextManager[RequestDriver]: ...


@asynccontextmanager
async def open_grpc_driver(testbed: Testbed) -> AsyncIterator[RequestDriver]:
    async with _client(testbed) as client:
        yield _SdkDriver(client)


@asynccontextmanager
async def open_session_driver(testbed: Testbed) -> AsyncIterator[RequestDriver]:
    async with _client(testbed) as client, client.session() as session:
        yield _SdkDriver(session)


@asynccontextmanager
async def open_http_driver(testbed: Testbed) -> AsyncIterator[RequestDriver]:
    plan, key = testbed.mesh.plan, testbed.mesh.api_key
    headers, limits = {"authorization": f"Bearer {key}"}, httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=f"http://{plan.http}/v1", headers=headers, limits=limits, timeout=TIMEOUT_S
    ) as http:
        yield _HttpDriver(http)


DRIVERS: Mapping[str, OpenDriver] = MappingProxyType(
    {"session": open_session_driver, "call": open_grpc_driver, "HTTP": open_http_driver}
)


def _client(testbed: Testbed) -> Client:
    addresses = [each.address for each in testbed.mesh.plan.processes_of("edge")]
    return Client(*addresses, api_key=testbed.mesh.api_key, retries=NO_RETRIES)


def prompt_token_ids(request: OfferedRequest, number: int) -> list[int]:
    return [3 + (number + place) % 200 for place in range(request.prompt_tokens)]


class _SdkDriver:
    def __init__(self, client: Client | Session) -> None:
        self._client = client

    async def __call__(self, request: OfferedRequest, transcript: Transcript, run_started_at: float) -> None:
        number = transcript.number
        answer = self._client.generate(
            prompt_token_ids(request, number), max_output_tokens=request.output_tokens, ignore_eos=True, seed=number
        )
        try:
            async with answer:
                async for piece in answer:
                    transcript.record(time.monotonic() - run_started_at, piece.first_index, len(piece.token_ids))
            transcript.end(time.monotonic() - run_started_at, OK)
        except PenstockError as error:
            transcript.prompt_tokens = request.prompt_tokens if answer.is_accepted else 0
            transcript.end(time.monotonic() - run_started_at, error.reason, error.code.name, error.retry_after)


class _HttpDriver:
    """`/v1/completions`, streamed. Events name no token's index: each counts as one."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def __call__(self, request: OfferedRequest, transcript: Transcript, run_started_at: float) -> None:
        body = {
            "prompt": prompt_token_ids(request, transcript.number),
            "max_tokens": request.output_tokens,
            "stream": True,
            "ignore_eos": True,
        }
        try:
            async with self._http.stream("POST", "/completions", json=body) as response:
                if response.status_code == httpx.codes.OK:
                    await self._read(response, transcript, run_started_at)
                    return
                told = orjson.loads(await response.aread())["error"]
        except httpx.HTTPError as error:
            transcript.end(time.monotonic() - run_started_at, type(error).__name__, "UNAVAILABLE")
            return
        wait = response.headers.get("retry-after-ms")
        code = REJECTION_CODES.get(response.status_code, f"HTTP_{response.status_code}")
        retry_after = float(wait) / 1000 if wait else None
        transcript.end(time.monotonic() - run_started_at, str(told["code"]).upper(), code, retry_after)

    async def _read(self, response: httpx.Response, transcript: Transcript, run_started_at: float) -> None:
        """Read to the end; an answer that breaks off was let in before."""
        failure = None
        async for line in response.aiter_lines():
            if line.startswith(DATA_PREFIX) and line != STREAM_END_LINE:
                failure = orjson.loads(line.removeprefix(DATA_PREFIX)).get("error")
                transcript.record(time.monotonic() - run_started_at, transcript.next_index, 0 if failure else 1)
        transcript.prompt_tokens = 1 if failure else 0
        outcome = str(failure["code"]).upper() if failure else OK
        transcript.end(time.monotonic() - run_started_at, outcome, "RESOURCE_EXHAUSTED" if failure else "OK")
