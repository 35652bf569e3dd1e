"""Clients that come, stay until they are told, and leave by one of the doors: gRPC cancel, session frame, HTTP cut."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx

from penstock.chassis.errors import PenstockError
from penstock.client import Client, Options, Session
from penstock.proofs.requests import Wish

TIMEOUT = 120.0  # s
DOORS = ("grpc", "session", "http")

Read = Callable[[Wish, str], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaver:
    """One client that has left. Times are Unix s, by the clock of the host that the mesh is on as well."""

    request_id: str
    door: str
    left_at: float
    passed_at: float  # when its own event loop had handed the cancel on
    was_under_way: bool
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Doors:
    """Ways to ask, each of which reads an answer until it is cancelled."""

    client: Client
    sessions: Iterator[Session]  # one at each edge, in turn
    http: httpx.AsyncClient
    bases: Iterator[str]  # of the API at each edge in turn, as a proxy would have it

    def reader(self, door: str) -> Read:
        return {"grpc": self._read_grpc, "session": self._read_session, "http": self._read_http}[door]

    async def _read_grpc(self, wish: Wish, request_id: str) -> None:
        async with self.client.generate(wish.prompt, **_named(wish, request_id)) as answer:
            await answer.read()

    async def _read_session(self, wish: Wish, request_id: str) -> None:
        async with next(self.sessions).generate(wish.prompt, **_named(wish, request_id)) as answer:
            await answer.read()

    async def _read_http(self, wish: Wish, request_id: str) -> None:
        body = {"prompt": wish.prompt, "max_tokens": wish.options["max_output_tokens"], "stream": True}
        named = {"x-request-id": request_id}
        url = f"{next(self.bases)}/completions"
        async with self.http.stream("POST", url, json={**body, "ignore_eos": True}, headers=named) as answer:
            answer.raise_for_status()
            async for _ in answer.aiter_raw():
                pass


@asynccontextmanager
async def open_doors(edges: Sequence[str], fronts: Sequence[str], api_key: str) -> AsyncIterator[Doors]:
    """`edges` answer gRPC and `fronts` HTTP, each host:port."""
    headers, limits = {"authorization": f"Bearer {api_key}"}, httpx.Limits(max_connections=None)
    async with (
        Client(*edges, api_key=api_key) as client,
        httpx.AsyncClient(headers=headers, limits=limits, timeout=TIMEOUT) as http,
        AsyncExitStack() as stack,
    ):
        sessions = itertools.cycle([await stack.enter_async_context(client.session()) for _ in edges])
        yield Doors(client, sessions, http, itertools.cycle(f"http://{each}/v1" for each in fronts))


def _named(wish: Wish, request_id: str) -> Options:
    return Options(**{**wish.options, "request_id": request_id})


class Visit:
    """One client that is reading."""

    def __init__(self, doors: Doors, door: str, wish: Wish, request_id: str, group: asyncio.TaskGroup) -> None:
        self._door = door
        self._request_id = request_id
        self._reading = group.create_task(self._read(doors.reader(door), wish))
        self._left_at = 0.0
        self._passed_at = 0.0
        self._was_under_way = False
        self._failure = ""

    async def leave(self) -> None:
        """Cancel, and let the cancel get out before the next of the crowd takes its time."""
        self._left_at, self._was_under_way = time.time(), not self._reading.done()
        self._reading.cancel()
        await asyncio.sleep(0)

    async def over(self) -> Leaver:
        await asyncio.wait([self._reading])
        return Leaver(
            request_id=self._request_id,
            door=self._door,
            left_at=self._left_at,
            passed_at=self._passed_at,
            was_under_way=self._was_under_way,
            failure=self._failure,
        )

    async def _read(self, read: Read, wish: Wish) -> None:
        try:
            await read(wish, self._request_id)
        except (PenstockError, httpx.HTTPError) as error:
            self._failure = repr(error)
        finally:
            self._passed_at = time.time()
