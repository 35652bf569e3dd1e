"""The edge as its front ends see it: gRPC and HTTP both speak through these calls."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar
from uuid import uuid4

from structlog.contextvars import bind_contextvars

from penstock.chassis.errors import PenstockError, error_from_failure, failure_from
from penstock.edge.catalog import Catalog
from penstock.edge.config import EdgeConfig
from penstock.edge.flight.flight import Flight
from penstock.edge.outlets.outlet import AnswerStream, Outlet
from penstock.edge.passage import Passage
from penstock.edge.planning import plan_for
from penstock.edge.record import Record
from penstock.edge.request.limits import TIMEOUT_S
from penstock.edge.request.outline import Arrival, Knock, Outline
from penstock.edge.request.spec import ChatInput, Prompt, RequestSpec, TextInput, TokenInput
from penstock.edge.standing import Standings
from penstock.edge.threads import SMALL, Threads
from penstock.edge.tower import Tower
from penstock.mesh.v1.admission_pb2 import Credential, Identity
from penstock.v1.inference_pb2 import PRIORITY_UNSPECIFIED, CountTokensResponse, Model

Parsed = TypeVar("Parsed")

BYTES_PER_ID = 4  # as the edge's own arrays have them
BYTES_PER_SENT_ID = 36  # a Python int in a tuple, as a caller's are until the flight ends
KNOCK_BYTES = 4_096  # about, of what waits beside a request's own bytes
BRIEF = 128  # characters; 0.5 us each, as against 90 us of CPU and some turns of the loop
IDS_PER_CHARACTER = 8  # that are checked in the time in which one is tokenized
_seeds = random.SystemRandom()


async def _at_once() -> None:
    pass


class Gateway:
    """Requests in, answers out. Every call raises PenstockError with what its caller may be told.

    Specs are to be valid by the public limits (`validate`) already; what depends on the model is checked here.
    """

    def __init__(self, config: EdgeConfig, tower: Tower, catalog: Catalog, threads: Threads) -> None:
        self._config = config
        self._tower = tower
        self._catalog = catalog
        self._threads = threads

    @asynccontextmanager
    async def generate(
        self,
        spec: RequestSpec,
        credential: Credential,
        arrival: Arrival,
        *,
        traceparent: str = "",
        let_in: Callable[[], Awaitable[object]] = _at_once,  # awaited first of all but the queue's word
    ) -> AsyncIterator[AnswerStream]:
        """Run one request: `accepted` first, then deltas, then `finished`.

        async with gateway.generate(spec, credential, gateway.arrive(outline, credential)) as answer:
            async for event in answer: ...

        Entering raises what `open` raises; iterating raises everything else, refusals before `accepted`. Leaving the
        block before `finished` cancels the request down to the GPU.
        """
        if arrival.knock:
            await self.knock(arrival.knock, _size(spec))
        stream = AnswerStream()
        passage = self.open(spec, credential, arrival, stream, traceparent=traceparent)
        stream.leave = partial(self._tower.leave, passage)
        try:
            await let_in()
            await self.prepare(passage)
            yield stream
        finally:
            self._tower.leave(passage)

    async def parsed(self, size: int, parse: Callable[[], Parsed]) -> Parsed:
        """Have a body of `size` bytes parsed; a long one must not hold up everybody's tokens."""
        return parse() if size <= SMALL else await self._threads.run(size, parse)

    def arrive(
        self,
        asked: Outline,
        credential: Credential,
        *,
        traceparent: str = "",
        time_left: float | None = None,  # s, of the call's own deadline; the earlier of it and what is asked for counts
        standings: Standings | None = None,  # a session's
    ) -> Arrival:
        """Decide at the door, before anything is made of a request. Raises Overloaded when the queue has no room."""
        time = self._time(asked.timeout_s, time_left)
        now = self._tower.now()
        return self._tower.door.check(asked, credential, traceparent, at=now, time=time, standings=standings)

    async def knock(self, knock: Knock, size: int) -> None:
        """Ask the queue first, where an arrival is to, while `size` bytes wait.

        Raises Overloaded when it would not take the request in, or when the edge is full.
        """
        with self._tower.flights.holding(size + KNOCK_BYTES):
            await self._tower.queues.knock(knock)

    def open(
        self, spec: RequestSpec, credential: Credential, arrival: Arrival, outlet: Outlet, *, traceparent: str = ""
    ) -> Passage:
        """Take a request in; `prepare` gets it going. Raises Overloaded when the edge is full."""
        size = _size(spec)
        self._tower.flights.check_room(size)
        now = arrival.at
        ticket_id = uuid4().hex
        request_id = spec.request_id or ticket_id
        passage = Passage(
            flight=Flight(ticket_id, arrived=now, deadline=now + arrival.time, limits=self._config.flight_limits),
            request_id=request_id,
            spec=spec,
            credential=credential,
            outlet=outlet,
            record=Record(spec, ticket_id, request_id, traceparent, now),
            size=size,
            asked_for=arrival.knock.ask if arrival.knock else None,
        )
        self._tower.open(passage)
        return passage

    async def prepare(self, passage: Passage) -> None:
        """Tokenize, then set the flight on its way. What is wrong with the request is told through its outlet."""
        try:
            if passage.size > SMALL or self._tower.auth.is_away:  # nobody unknown is worth that much work
                passage.flight.identity = await self.identify(passage.credential)
            model = await self._catalog.find(passage.spec.model)
            plan_it = partial(
                plan_for,
                passage.spec,
                model,
                now=datetime.now(UTC),
                default_output_tokens=self._config.default_output_tokens,
                draw_seed=partial(_seeds.getrandbits, 64),
            )
            plan = plan_it() if _is_brief(passage.spec) else await self._threads.run(passage.size, plan_it)
            self._tower.flights.grow(passage, BYTES_PER_ID * len(plan.prompt_ids))
            self._tower.door.check_planned(passage, plan)
        except Exception as error:  # noqa: BLE001  # logged there; one request's fault must not end its session
            self.name_caller(error, passage.credential)
            self._tower.fail(passage, error_from_failure(failure_from(error)))
            return
        if passage.flight.is_done:  # its client left meanwhile, and its record is closed
            return
        now = self._tower.now()
        passage.record.tokenized(now)
        self._tower.apply(passage, passage.flight.tokenized(plan, now))

    def cancel(self, passage: Passage) -> None:
        """The client does not want it any more; its outlet is told when it is over."""
        self._tower.leave(passage)

    async def count_tokens(
        self, spec: RequestSpec, credential: Credential, *, include_token_ids: bool = False
    ) -> CountTokensResponse:
        """Return the size of the spec's input; of the rest only its model counts."""
        await self.identify(credential)
        model = await self._catalog.find(spec.model)
        encode = partial(model.codec.prompt_ids, spec.input, datetime.now(UTC))
        size = _size(spec)
        with self._tower.flights.holding(size):
            ids = await self._threads.run(size, encode)
        return CountTokensResponse(
            prompt_tokens=len(ids),
            context_length=model.context_length,
            token_ids=ids if include_token_ids else (),
        )

    async def list_models(self, credential: Credential) -> list[Model]:
        await self.identify(credential)
        return self._catalog.list()

    async def identify(self, credential: Credential) -> Identity:
        return await self._tower.auth.identify(credential, self._config.identify_patience)

    @contextmanager
    def naming(self, credential: Credential) -> Iterator[None]:
        """Name the caller of what is raised in the block, as `name_caller` does."""
        try:
            yield
        except Exception as error:
            self.name_caller(error, credential)
            raise

    def name_caller(self, error: Exception, credential: Credential) -> None:
        """Have the log line of an unexpected error, which the same task writes next, name a caller that is known."""
        if not isinstance(error, PenstockError) and (known := self._tower.auth.met(credential, PRIORITY_UNSPECIFIED)):
            bind_contextvars(tenant=known.tenant_id, key_id=known.key_id)

    def _time(self, *limits: float | None) -> float:
        """Seconds that a request may take: the shortest limit given, or the default.

        A call's own deadline above the contract's day counts as a day. A `timeout` above it is refused by `validate`,
        which comes later.
        """
        given = [max(0.0, limit) for limit in limits if limit is not None]
        return min([*given, TIMEOUT_S]) if given else self._config.default_timeout


def _is_brief(spec: RequestSpec) -> bool:
    """Tell whether to plan it takes less than to have a thread do so."""
    match spec.input:
        case TextInput(text):
            units = len(text)
        case TokenInput(ids):
            units = len(ids) // IDS_PER_CHARACTER
        case _:
            return False
    return units <= BRIEF and not spec.resume_ids


def _size(spec: RequestSpec) -> int:
    """Bytes, about, of what a client sent."""
    return _prompt_size(spec.input) + BYTES_PER_SENT_ID * len(spec.resume_ids)


def _prompt_size(prompt: Prompt) -> int:
    match prompt:
        case TextInput(text):
            return len(text)
        case ChatInput(messages):
            return sum(len(message.role) + len(message.content) for message in messages)
        case _:
            return BYTES_PER_SENT_ID * len(prompt.ids)
