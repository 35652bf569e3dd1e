"""Three ways to ask for the same: a call of its own, a session that all share, HTTP. What came of it is its history."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import MappingProxyType
from typing import Protocol

import httpx
import orjson

from penstock.bench.history import OK, History
from penstock.bench.sse import CODES, DATA
from penstock.chassis.errors import PenstockError
from penstock.client import Client, RetryPolicy
from penstock.client.session import Session
from penstock.proofs.testbed.testbed import Rig
from penstock.simulator.traffic.demand import Ask

ONCE = RetryPolicy(max_attempts=1)
TIMEOUT = 120.0  # s; nothing waits for longer
ONCE_SENT = "data: [DONE]"


class Asking(Protocol):
    """Asks once and reads to the end; never raises for what the mesh answers. `began` is the zero of a history's s."""

    async def __call__(self, ask: Ask, history: History, began: float) -> None: ...


class Way(Protocol):
    def __call__(self, stage: Rig) -> AbstractAsyncContextManager[Asking]: ...


@asynccontextmanager
async def by_calls(stage: Rig) -> AsyncIterator[Asking]:
    async with _client(stage) as client:
        yield _Generates(client)


@asynccontextmanager
async def by_session(stage: Rig) -> AsyncIterator[Asking]:
    async with _client(stage) as client, client.session() as session:
        yield _Generates(session)


@asynccontextmanager
async def by_http(stage: Rig) -> AsyncIterator[Asking]:
    plan, key = stage.mesh.plan, stage.mesh.api_key
    headers, limits = {"authorization": f"Bearer {key}"}, httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=f"http://{plan.http}/v1", headers=headers, limits=limits, timeout=TIMEOUT
    ) as http:
        yield _Posts(http)


WAYS: Mapping[str, Way] = MappingProxyType({"session": by_session, "call": by_calls, "HTTP": by_http})


def _client(stage: Rig) -> Client:
    addresses = [each.address for each in stage.mesh.plan.of("edge")]
    return Client(*addresses, api_key=stage.mesh.api_key, retries=ONCE)


def prompt_of(ask: Ask, number: int) -> list[int]:
    return [3 + (number + place) % 200 for place in range(ask.prompt)]


class _Generates:
    def __init__(self, client: Client | Session) -> None:
        self._client = client

    async def __call__(self, ask: Ask, history: History, began: float) -> None:
        number = history.number
        answer = self._client.generate(
            prompt_of(ask, number), max_output_tokens=ask.output, ignore_eos=True, seed=number
        )
        try:
            async with answer:
                async for piece in answer:
                    history.take(time.monotonic() - began, piece.first_index, len(piece.token_ids))
            history.end(time.monotonic() - began, OK)
        except PenstockError as error:
            history.prompt_tokens = ask.prompt if answer.is_accepted else 0
            history.end(time.monotonic() - began, error.reason, error.code.name, error.retry_after)


class _Posts:
    """`/v1/completions`, streamed. Events name no token's index: each counts as one."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def __call__(self, ask: Ask, history: History, began: float) -> None:
        body = {"prompt": prompt_of(ask, history.number), "max_tokens": ask.output, "stream": True, "ignore_eos": True}
        try:
            async with self._http.stream("POST", "/completions", json=body) as response:
                if response.status_code == httpx.codes.OK:
                    await self._read(response, history, began)
                    return
                told = orjson.loads(await response.aread())["error"]
        except httpx.HTTPError as error:
            history.end(time.monotonic() - began, type(error).__name__, "UNAVAILABLE")
            return
        wait = response.headers.get("retry-after-ms")
        code = CODES.get(response.status_code, f"HTTP_{response.status_code}")
        retry_after = float(wait) / 1000 if wait else None
        history.end(time.monotonic() - began, str(told["code"]).upper(), code, retry_after)

    async def _read(self, response: httpx.Response, history: History, began: float) -> None:
        """Read to the end; an answer that breaks off was let in before."""
        failure = None
        async for line in response.aiter_lines():
            if line.startswith(DATA) and line != ONCE_SENT:
                failure = orjson.loads(line.removeprefix(DATA)).get("error")
                history.take(time.monotonic() - began, history.next_index, 0 if failure else 1)
        history.prompt_tokens = 1 if failure else 0
        outcome = str(failure["code"]).upper() if failure else OK
        history.end(time.monotonic() - began, outcome, "RESOURCE_EXHAUSTED" if failure else "OK")
