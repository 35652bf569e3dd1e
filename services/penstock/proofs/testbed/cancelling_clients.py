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
from penstock.proofs.requests import ProofRequest

TIMEOUT_S = 120.0  # s
TRANSPORTS = ("grpc", "session", "http")

ReadFn = Callable[[ProofRequest, str], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelledClient:
    """One client that has left. Times are Unix s, by the clock of the host that the mesh is on as well."""

    request_id: str
    transport: str
    cancelled_at: float
    cancel_sent_at: float  # when its own event loop had handed the cancel on
    was_active: bool
    failure_text: str = ""


@dataclass(frozen=True, slots=True)
class ClientTransports:
    """Ways to ask, each of which reads an answer until it is cancelled."""

    client: Client
    sessions: Iterator[Session]  # one at each edge, in turn
    http: httpx.AsyncClient
    base_urls: Iterator[str]  # of the API at each edge in turn, as a proxy would have it

    def reader(self, transport: str) -> ReadFn:
        return {"grpc": self._read_grpc, "session": self._read_session, "http": self._read_http}[transport]

    async def _read_grpc(self, request: ProofRequest, request_id: str) -> None:
        async with self.client.generate(request.prompt, **_options_of(request, request_id)) as answer:
            await answer.read()

    async def _read_session(self, request: ProofRequest, request_id: str) -> None:
        async with next(self.sessions).generate(request.prompt, **_options_of(request, request_id)) as answer:
            await answer.read()

    async def _read_http(self, request: ProofRequest, request_id: str) -> None:
        body = {"prompt": request.prompt, "max_tokens": request.options["max_output_tokens"], "stream": True}
        named = {"x-request-id": request_id}
        url = f"{next(self.base_urls)}/completions"
        async with self.http.stream("POST", url, json={**body, "ignore_eos": True}, headers=named) as answer:
            answer.raise_for_status()
            async for _ in answer.aiter_raw():
                pass


@asynccontextmanager
async def open_transports(
    grpc_addresses: Sequence[str], http_addresses: Sequence[str], api_key: str
) -> AsyncIterator[ClientTransports]:
    """`edges` answer gRPC and `fronts` HTTP, each host:port."""
    headers, limits = {"authorization": f"Bearer {api_key}"}, httpx.Limits(max_connections=None)
    async with (
        Client(*grpc_addresses, api_key=api_key) as client,
        httpx.AsyncClient(headers=headers, limits=limits, timeout=TIMEOUT_S) as http,
        AsyncExitStack() as stack,
    ):
        sessions = itertools.cycle([await stack.enter_async_context(client.session()) for _ in grpc_addresses])
        yield ClientTransports(client, sessions, http, itertools.cycle(f"http://{each}/v1" for each in http_addresses))


def _options_of(request: ProofRequest, request_id: str) -> Options:
    return Options(**{**request.options, "request_id": request_id})


class CancellableRequest:
    """One client that is reading."""

    def __init__(
        self,
        transports: ClientTransports,
        transport: str,
        request: ProofRequest,
        request_id: str,
        group: asyncio.TaskGroup,
    ) -> None:
        self._transport = transport
        self._request_id = request_id
        self._reading = group.create_task(self._read(transports.reader(transport), request))
        self._cancelled_at = 0.0
        self._cancel_sent_at = 0.0
        self._was_active = False
        self._failure_text = ""

    async def cancel(self) -> None:
        """Cancel, and let the cancel get out before the next of the crowd takes its time."""
        self._cancelled_at, self._was_active = time.time(), not self._reading.done()
        self._reading.cancel()
        await asyncio.sleep(0)

    async def result(self) -> CancelledClient:
        await asyncio.wait([self._reading])
        return CancelledClient(
            request_id=self._request_id,
            transport=self._transport,
            cancelled_at=self._cancelled_at,
            cancel_sent_at=self._cancel_sent_at,
            was_active=self._was_active,
            failure_text=self._failure_text,
        )

    async def _read(self, read_answer: ReadFn, request: ProofRequest) -> None:
        try:
            await read_answer(request, self._request_id)
        except (PenstockError, httpx.HTTPError) as error:
            self._failure_text = repr(error)
        finally:
            self._cancel_sent_at = time.time()
