"""The edge's HTTP server on a real port over a scripted gateway."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
import httpx2
import openai

from penstock.chassis.clocks import WallMonotonicClock
from penstock.chassis.errors import PenstockError
from penstock.edge.api.http.app import OpenAIApp
from penstock.edge.api.http.server import serving_http
from penstock.edge.api.openai.responses.stored import ResponsesFormat
from penstock.edge.config import EdgeConfig
from penstock.edge.lifecycle.effects import Emit
from penstock.edge.lifecycle.memory import MemoryBudget
from penstock.edge.lifecycle.sinks import ResponseStream
from penstock.edge.request.estimate import AdmissionResult
from penstock.edge.stored.service import StoredResponses
from penstock.edge.upstreams.batches import BatchClient
from penstock.v1.inference_pb2 import FINISH_REASON_STOP, Accepted, Finished, Model, Usage
from penstock.v1.stream_pb2 import Hello

TIMEOUT_S = 30.0  # bound of every wait


class GatewayCall:
    """One request as the gateway received it; sends the events that the test scripts."""

    def __init__(self, spec, credential, traceparent):
        self.spec = spec
        self.credential = credential
        self.traceparent = traceparent
        self.stream = ResponseStream(MemoryBudget(2**20))
        self.was_left = asyncio.Event()
        self.stream.cancel = lambda: self.disconnects.append(self.was_left.is_set())
        self.disconnects = []  # one entry per cancel: whether the block had been left already
        self.tokens_sent = 0

    def accept(self):
        self.stream.send_accepted(Accepted(request_id=self.spec.request_id, model="tiny", prompt_tokens=3))

    def send(self, *texts):
        for text in texts:
            self.stream.send_delta(Emit(text, [self.tokens_sent], self.tokens_sent, ()))
            self.tokens_sent += 1

    def finish(self, reason=FINISH_REASON_STOP):
        usage = Usage(prompt_tokens=3, output_tokens=self.tokens_sent, cached_prompt_tokens=2)
        self.stream.send_finished(Finished(reason=reason, usage=usage))

    def fail(self, error: PenstockError):
        self.stream.send_failed(error)

    async def wait_left(self):
        async with asyncio.timeout(TIMEOUT_S):
            await self.was_left.wait()


class FakeGateway:
    """Accepts every request; the test sends its events."""

    def __init__(self):
        self._calls = asyncio.Queue()
        self.rejection: Exception | None = None
        self.auth_rejection: Exception | None = None
        self.credentials = []
        self.sessions = []  # names of the conversations of admitted requests
        self.authenticated = []
        self.times_left = []  # of each request, as its caller stated it
        self.holds_identification = False  # callers stay unknown until `release_identification`
        self._identification = asyncio.Event()

    def release_identification(self):
        self._identification.set()

    def name_caller(self, error, credential):
        """Does nothing: no caller is cached."""

    async def parse(self, size, parse):
        return parse()

    def admit(self, estimate, credential, *, traceparent="", time_left=None, session=str, front=None):
        self.times_left.append(time_left)
        if self.rejection:
            raise self.rejection
        self.sessions.append(session())
        return AdmissionResult(0.0, 60.0)

    @asynccontextmanager
    async def generate(self, spec, credential, arrival, *, traceparent=""):
        call = GatewayCall(spec, credential, traceparent)
        self._calls.put_nowait(call)
        try:
            yield call.stream
        finally:
            call.was_left.set()

    async def authenticate(self, credential):
        self.authenticated.append(credential)
        if self.holds_identification:
            await self._identification.wait()
        if self.auth_rejection:
            raise self.auth_rejection

    async def list_models(self, credential, identity_header=""):
        if self.rejection:
            raise self.rejection
        self.credentials.append(credential)
        return [Model(name="org/tiny", context_length=64), Model(name="tiny", context_length=512)]

    @property
    def was_called(self):
        return not self._calls.empty()

    async def call(self) -> GatewayCall:
        async with asyncio.timeout(TIMEOUT_S):
            return await self._calls.get()


class HttpEdge:
    """A running HTTP server with its clients."""

    def __init__(self, front, gateway, address, http, api):
        self.front = front
        self.gateway = gateway
        self.address = address
        self.http = http  # a plain client
        self.api = api  # the OpenAI client, unmodified

    def post(self, path="/v1/completions", **body):
        return self.http.post(path, json={"prompt": "hi", **body})

    async def connect(self):
        host, port = self.address.split(":")
        return await asyncio.open_connection(host, int(port))

    async def wait_connections_refused(self):
        """Wait until the server no longer listens."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                try:
                    _, writer = await self.connect()
                    writer.close()
                    await writer.wait_closed()
                except ConnectionError:
                    return

    @asynccontextmanager
    async def accepted_stream(self, **body):
        """An accepted stream: the response and the call of the gateway."""
        request = self.http.build_request("POST", "/v1/completions", json={"prompt": "hi", "stream": True, **body})
        sent = asyncio.create_task(self.http.send(request, stream=True))
        call = await self.gateway.call()
        call.accept()
        response = await sent
        try:
            yield response, call
        finally:
            await response.aclose()

    @asynccontextmanager
    async def unread_stream(self):
        """A stream whose client reads only the bytes that the test reads."""
        reader, writer = await self.connect()
        try:
            body = b'{"prompt":"hi","stream":true}'
            head = f"POST /v1/completions HTTP/1.1\r\nhost: edge\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            call = await self.gateway.call()
            call.accept()
            yield reader, writer, call
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


def without_store(gateway) -> StoredResponses:
    """The responses of an edge that stores none."""
    return StoredResponses(EdgeConfig(), gateway, ResponsesFormat(), Hello(), WallMonotonicClock())


@asynccontextmanager
async def http_edge(*, drain_grace=5.0, is_ready=lambda: True, door=None, **front) -> AsyncIterator[HttpEdge]:
    gateway = FakeGateway()
    served = OpenAIApp(gateway, without_store(gateway), BatchClient(()), is_ready, **front)
    async with serving_http("127.0.0.1:0", served, drain_grace, door) as address:
        base = f"http://{address}"
        async with (
            httpx.AsyncClient(base_url=base, timeout=TIMEOUT_S) as http,
            openai.AsyncOpenAI(
                base_url=f"{base}/v1", api_key="k", max_retries=0, http_client=httpx2.AsyncClient(timeout=TIMEOUT_S)
            ) as api,
        ):
            yield HttpEdge(served, gateway, address, http, api)
