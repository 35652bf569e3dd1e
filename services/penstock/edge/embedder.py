"""Embedding of many inputs: each is a request of its own, a bounded number of them at the same time."""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from penstock.chassis.errors import InvalidArgument, PenstockError
from penstock.edge.gateway import Gateway
from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.lifecycle.sinks import ResponseStream
from penstock.edge.models.loaded_model import LoadedModel
from penstock.edge.request import limits
from penstock.edge.request.embedding import EmbeddingCall
from penstock.edge.request.estimate import estimate_from_spec
from penstock.edge.request.limit_headers import Headers
from penstock.edge.request.size import prompt_bytes
from penstock.edge.request.spec import RequestSpec
from penstock.mesh.embeddings import EMBEDDING_UNSUPPORTED
from penstock.mesh.v1.admission_pb2 import Credential

MAX_CONCURRENT_RUNS = 64  # of one call, so that a long list cannot take the whole queue

Encoded = TypeVar("Encoded")


class EmbeddingUnsupported(InvalidArgument):
    """The workers of the model compute no embeddings."""

    default_reason = EMBEDDING_UNSUPPORTED


class Encoding(NamedTuple, Generic[Encoded]):
    """The form in which a vector is kept until all are complete."""

    encode: Callable[[Sequence[float]], Encoded]
    bytes_per_number: int


@dataclass(slots=True)
class Embedded(Generic[Encoded]):
    """The vectors of a call, and the tokens of all its inputs."""

    request_id: str
    model: LoadedModel
    vectors: list[Encoded] = field(default_factory=list)  # in the order of the inputs
    prompt_tokens: int = 0
    cached_tokens: int = 0
    limit_headers: Headers = ()  # of the last admission


async def embed(
    gateway: Gateway,
    call: EmbeddingCall,
    credential: Credential,
    encoding: Encoding[Encoded],
    *,
    traceparent: str = "",
    time_left: float | None = None,  # s until the call's own deadline
    session: Callable[[], str] = str,  # as in `Gateway.admit`
    on_created: Callable[[RequestContext], None] = lambda _: None,  # called with each request before it starts
) -> Embedded[Encoded]:
    """Embed all inputs by one version of the model. The first error cancels the runs of the others.

    Raises EmbeddingUnsupported, InvalidArgument if there are too many numbers, and the errors of `Gateway.generate`.
    """
    routed = gateway.routed(call.spec_of(0, call.model, ""), credential, session)
    model = await gateway.choose_model(routed.model, route=call.model, credential=credential, time_left=time_left)
    size = _vector_size(call, model)
    held = sum(map(prompt_bytes, call.inputs)) + len(call.inputs) * size * encoding.bytes_per_number
    with gateway.hold_bytes(held):
        embedder = _Embedder(
            gateway=gateway,
            call=call,
            credential=credential,
            encoding=encoding,
            embedded=Embedded(call.request_id, model),
            size=size,
            traceparent=traceparent,
            on_created=on_created,
            ends_at=math.inf if time_left is None else asyncio.get_running_loop().time() + time_left,
        )
        return await embedder.run()


def _vector_size(call: EmbeddingCall, model: LoadedModel) -> int:
    if not model.embedding_size:
        raise EmbeddingUnsupported(f"the workers of {model.name} compute no embeddings", field="model")
    size = call.dimensions or model.embedding_size
    if size > model.embedding_size:
        text = f"dimensions is {size}; a vector of {model.name} has {model.embedding_size} numbers"
        raise InvalidArgument(text, field="dimensions")
    if len(call.inputs) * size > limits.EMBEDDING_NUMBERS:
        text = f"{len(call.inputs)} vectors of {size} numbers exceed {limits.EMBEDDING_NUMBERS} numbers"
        raise InvalidArgument(f"{text}; send fewer inputs in one call", field="input")
    return size


@dataclass(slots=True, kw_only=True)
class _Embedder(Generic[Encoded]):
    """One call. Its deadline is that of all its runs."""

    gateway: Gateway
    call: EmbeddingCall
    credential: Credential
    encoding: Encoding[Encoded]
    embedded: Embedded[Encoded]
    size: int  # numbers of a vector
    traceparent: str
    on_created: Callable[[RequestContext], None]
    ends_at: float  # s of the event loop's clock
    vectors: dict[int, Encoded] = field(default_factory=dict)  # by index of the input

    async def run(self) -> Embedded[Encoded]:
        pending = iter(range(len(self.call.inputs)))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(len(self.call.inputs), MAX_CONCURRENT_RUNS)):
                    group.create_task(self._embed_each(pending))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        self.embedded.vectors = [self.vectors[index] for index in range(len(self.call.inputs))]
        return self.embedded

    async def _embed_each(self, pending: Iterator[int]) -> None:
        """Embed inputs until none is pending."""
        model = self.embedded.model
        for index in pending:
            context = await self._run_request(self.call.spec_of(index, model.name, model.digest))
            request = context.request
            self.vectors[index] = self.encoding.encode(_shortened(request.embedding, self.size))
            self.embedded.prompt_tokens += request.prompt_tokens
            self.embedded.cached_tokens += request.cached_prompt_tokens
            self.embedded.limit_headers = context.limit_headers

    async def _run_request(self, spec: RequestSpec) -> RequestContext:
        """Run a request to its end. Raises its error, with the limits of the caller; a cancelled task cancels it."""
        now = asyncio.get_running_loop().time()
        admission = self.gateway.admit(
            estimate_from_spec(spec), self.credential, traceparent=self.traceparent, time_left=self.ends_at - now
        )
        admission = admission._replace(model="")  # chosen for the whole call, also if a route has the model's name
        # The first run has set the end of all.
        self.ends_at = min(self.ends_at, now + admission.time_limit)
        stream = ResponseStream(self.gateway.memory)
        context = self.gateway.create(spec, self.credential, admission, stream, traceparent=self.traceparent)
        self.on_created(context)
        try:
            await self.gateway.start(context)
            async for _ in stream:
                pass
        except PenstockError as error:
            error.extra_metadata = context.limit_headers
            raise
        finally:
            self.gateway.cancel(context)
            stream.close()
        return context


def _shortened(values: Sequence[float], size: int) -> Sequence[float]:
    """Return the first `size` numbers, scaled to length 1 again."""
    if size == len(values):
        return values
    first = values[:size]
    length = math.hypot(*first)
    return [value / length for value in first] if length else first
