"""The client: any number of requests to one or more edges."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Self, TypeVar, Unpack

import grpc

from penstock.chassis.errors import PenstockError
from penstock.client.calls import CallTransport
from penstock.client.conversation import Turn
from penstock.client.endpoints import Endpoint, Endpoints, Metadata
from penstock.client.request import Options, Prompt, count_request, embed_request, generate_request
from penstock.client.response import Generation
from penstock.client.retries import RetryBudget, RetryPolicy
from penstock.client.session import Session
from penstock.mesh.choice_seed import choice_seed
from penstock.v1.inference_pb2 import CountTokensResponse, EmbedResponse, ListModelsRequest, Model

Result = TypeVar("Result")

UNARY_TIMEOUT_S = 30.0


class Client:
    """Sends requests to one edge, or distributes them over several and continues on another if one is lost.

    `failover` are targets of other regions. They receive requests only while all of `targets` are down, which are
    probed meanwhile: new requests go to them again within a second of their return.

    async with Client("127.0.0.1:8080", api_key=key) as client:
        async with client.generate("Hello", max_output_tokens=64) as generation:
            async for chunk in generation:
                print(chunk.text, end="")
        print(generation.finished.usage)

    Errors are subclasses of PenstockError with `reason` and `retry_after`. A client belongs to one event loop.
    """

    def __init__(
        self,
        *targets: str,
        failover: Sequence[str] = (),
        api_key: str = "",
        credentials: grpc.ChannelCredentials | None = None,  # None for plaintext
        retries: RetryPolicy | None = None,
    ) -> None:
        if not targets:
            raise ValueError("a client needs at least one target, host:port")
        if isinstance(failover, str) or set(targets) & set(failover):
            raise ValueError("failover is a sequence of targets other than the first ones")
        metadata: Metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        self._metadata = metadata
        self._endpoints = Endpoints(targets, credentials, failover=failover, metadata=metadata)
        self._transport = CallTransport(self._endpoints, metadata)
        self._budget = RetryBudget(retries or RetryPolicy())

    async def __aenter__(self) -> Self:
        await self._endpoints.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._endpoints.close()

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Generation:
        """Return a generation to iterate in `async with`. Raises TypeError or ValueError for invalid options."""
        return Generation(self._transport, generate_request(prompt, **options), self._budget)

    def choices(self, prompt: Prompt, n: int, **options: Unpack[Options]) -> list[Generation]:
        """Return `n` generations of one prompt: the choices that `n` of `GenerateRequest` gives for the same seed.

        Each is a request of its own, which resumes by itself, also at another edge, and is charged for the prompt.
        Workers compute the prompt once for generations that are iterated at one time.
        """
        given = options.get("seed")
        seed = random.getrandbits(64) if given is None else given
        generations = []
        for choice in range(n):
            options["seed"] = choice_seed(seed, choice)
            generations.append(self.generate(prompt, **options))
        return generations

    async def complete(self, prompt: Prompt, **options: Unpack[Options]) -> str:
        """Return the whole text of an answer."""
        async with self.generate(prompt, **options) as generation:
            return await generation.read()

    @asynccontextmanager
    async def session(self, *, traceparent: str = "") -> AsyncIterator[Session]:
        """Open a session: many requests on one stream. Requests that run at the end of the block are cancelled.

        traceparent: W3C trace context of the session, and of its requests that have none of their own. If it is empty,
        each of these begins a trace.
        """
        session = Session(self._endpoints, self._metadata, self._budget, traceparent)
        running = asyncio.create_task(session.run())  # a TaskGroup would wrap errors of the block
        try:
            yield session
            await session.end()
        finally:
            session.close()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def count_tokens(
        self, prompt: str | Sequence[Turn], *, model: str = "", include_token_ids: bool = False
    ) -> CountTokensResponse:
        request = count_request(prompt, model)
        request.include_token_ids = include_token_ids
        return await self._call(lambda to, key: to.stub.CountTokens(request, metadata=key, timeout=UNARY_TIMEOUT_S))

    async def embed(
        self,
        inputs: Sequence[str | Sequence[int]],
        *,
        model: str = "",
        dimensions: int | None = None,
        timeout: float = UNARY_TIMEOUT_S,  # s for each attempt
    ) -> EmbedResponse:
        """Return one vector for each text or list of token ids."""
        request = embed_request(inputs, model, dimensions)
        return await self._call(lambda to, key: to.stub.Embed(request, metadata=key, timeout=timeout))

    async def list_models(self) -> list[Model]:
        request = ListModelsRequest()
        response = await self._call(lambda to, key: to.stub.ListModels(request, metadata=key, timeout=UNARY_TIMEOUT_S))
        return list(response.models)

    async def _call(self, call: Callable[[Endpoint, Metadata], Awaitable[Result]]) -> Result:
        """Call with retries. The unary calls change nothing, so repeating them is safe."""
        attempt = 1
        while True:
            try:
                response = await self._transport.unary(call, self._budget.policy.connect_timeout)
            except PenstockError as error:
                wait = self._budget.delay(error, attempt, random.random())  # noqa: S311  # jitter, not security
                if wait is None:
                    raise
                await asyncio.sleep(wait)
                attempt += 1
            else:
                self._budget.on_success()
                return response
