"""The HTTP application: routes requests of the APIs of OpenAI and Anthropic to the gateway.

It is plain ASGI for eleven routes: a framework's layers around `send` would add 2 us to the 10 us of every token.
"""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import orjson

from penstock.chassis.errors import NotFound, PenstockError, Unavailable, error_from_failure, failure_from
from penstock.chassis.lifecycle import current_stop
from penstock.edge.api.anthropic.requests import counted_tokens, parse_count, parse_message
from penstock.edge.api.anthropic.serializer import message_serializer
from penstock.edge.api.http.api_formats import ANTHROPIC
from penstock.edge.api.http.batches import BatchHandlers, is_batch_path
from penstock.edge.api.http.choices import write_choices
from penstock.edge.api.http.exchange import BodyBudget, ClientDisconnected, Exchange
from penstock.edge.api.http.metrics import record_request
from penstock.edge.api.http.proxy_door import is_via_proxy
from penstock.edge.api.http.responses import write_stream, write_whole
from penstock.edge.api.http.stored import RESPONSE_PREFIX, RESPONSES_ROUTE, ResponseHandlers
from penstock.edge.api.openai.body.fields import Fields, parse_body, quoted
from penstock.edge.api.openai.chat import parse_chat
from penstock.edge.api.openai.common import ApiRequest
from penstock.edge.api.openai.completions import parse_completion
from penstock.edge.api.openai.embeddings import embedding_list, parse_embeddings
from penstock.edge.api.openai.errors import MethodNotAllowed
from penstock.edge.api.openai.models import model_list, model_object
from penstock.edge.api.openai.responses.response import parse_response
from penstock.edge.api.openai.serializers import chat_serializer, completion_serializer, responses_serializer
from penstock.edge.api.openai.tokenization import detokenized, parse_detokenize, parse_tokenize, tokenized
from penstock.edge.choice_calls import generate_choices
from penstock.edge.embedder import embed
from penstock.edge.gateway import Gateway
from penstock.edge.lifecycle.choices import ChoiceStream
from penstock.edge.lifecycle.sinks import ResponseStream
from penstock.edge.request import limits
from penstock.edge.request.deadline_headers import time_limit
from penstock.edge.request.estimate import AdmissionResult, estimate_from_spec
from penstock.edge.request.session_names import session_of
from penstock.edge.request.spec import TokenInput
from penstock.edge.stored.service import StoredResponses
from penstock.edge.upstreams.batches import BatchClient

Handler = Callable[[Exchange], Awaitable[None]]
Parsed = TypeVar("Parsed")

HEALTH_ROUTE = "/health"
MESSAGES_ROUTE = "/v1/messages"
MODEL_PREFIX = "/v1/models/"
MODEL_ROUTE = MODEL_PREFIX + "{name}"  # the rest of the path, including slashes
KEEPALIVE_INTERVAL_S = 10.0  # proxies and clients commonly close streams that are silent for 30 to 60 s
DRAIN_RETRY_AFTER_S = 0.1  # another edge can serve the retry at once


class OpenAIApp:
    """The ASGI application of one edge."""

    def __init__(
        self,
        gateway: Gateway,
        stored: StoredResponses,
        batches: BatchClient,
        is_ready: Callable[[], bool],
        *,
        keepalive_interval: float = KEEPALIVE_INTERVAL_S,
        is_from_proxy: Callable[[Any], bool] = is_via_proxy,
    ) -> None:
        """`is_from_proxy`: whether the peer of an ASGI scope is our own proxy by its certificate."""
        self._gateway = gateway
        self._responses = ResponseHandlers(gateway, stored)
        self._batches = BatchHandlers(gateway, batches, self._parse)
        self._is_ready = is_ready
        self._keepalive_interval = keepalive_interval  # s without output before a keep-alive is sent
        self._is_from_proxy = is_from_proxy
        self._created = int(time.time())
        self._body_budget = BodyBudget(limits.BODY_BUDGET_BYTES)
        self._exchanges: set[Exchange] = set()
        self._routes: dict[str, tuple[str, Handler]] = {
            HEALTH_ROUTE: ("GET", self._show_health),
            "/v1/models": ("GET", self._list_models),
            MODEL_ROUTE: ("GET", self._show_model),
            "/tokenize": ("POST", self._tokenize),
            "/detokenize": ("POST", self._detokenize),
            RESPONSES_ROUTE: ("POST", self._respond),
            "/v1/chat/completions": ("POST", partial(self._generate, parse_chat, chat_serializer)),
            "/v1/completions": ("POST", partial(self._generate, parse_completion, completion_serializer)),
            "/v1/embeddings": ("POST", self._embed),
            MESSAGES_ROUTE: ("POST", partial(self._generate, parse_message, message_serializer)),
            f"{MESSAGES_ROUTE}/count_tokens": ("POST", self._count_tokens),
        }

    def __repr__(self) -> str:
        return f"<OpenAIApp {len(self._exchanges)} running>"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        began = time.perf_counter()
        exchange = Exchange(
            scope,
            receive,
            send,
            keepalive_interval=self._keepalive_interval,
            via_proxy=self._is_from_proxy(scope),
        )
        self._exchanges.add(exchange)
        is_disconnected = False
        try:
            await exchange.serve(self._handler_of(exchange))
        except ClientDisconnected:
            is_disconnected = True
        except PenstockError as error:
            await exchange.fail(error)
        except Exception as error:  # noqa: BLE001  # logged by `failure_from`; callers do not receive its text
            self._gateway.name_caller(error, exchange.credential)
            await exchange.fail(error_from_failure(failure_from(error)))
        finally:
            self._exchanges.discard(exchange)
            duration = time.perf_counter() - began
            record_request(exchange, duration, is_disconnected=is_disconnected)

    @property
    def body_bytes_held(self) -> int:
        return self._body_budget.held_bytes

    def abort(self) -> int:
        """End all running exchanges with a retryable error. Returns their number."""
        running = list(self._exchanges)
        for exchange in running:
            exchange.abort(
                Unavailable(
                    "this edge drains; send the request again", reason="DRAINING", retry_after=DRAIN_RETRY_AFTER_S
                )
            )
        return len(running)

    def _handler_of(self, exchange: Exchange) -> Handler:
        path, method = exchange.path, exchange.method
        if path.startswith(MESSAGES_ROUTE):
            exchange.format = ANTHROPIC
        if path.startswith(RESPONSE_PREFIX):
            return self._responses.handler_of(exchange)
        if is_batch_path(path):
            return self._batches.handler_of(exchange)
        route = MODEL_ROUTE if path.startswith(MODEL_PREFIX) else path
        if route not in self._routes:
            raise NotFound(f"nothing is served at {quoted(path)}; the API is below /v1", reason="PATH_UNKNOWN")
        exchange.route = route
        if route != HEALTH_ROUTE:
            exchange.observe()
        allowed, serve = self._routes[route]
        if method != allowed and (method, allowed) != ("HEAD", "GET"):
            raise MethodNotAllowed(path, allowed)
        return serve

    async def _generate(
        self,
        parse: Callable[[Fields, str], ApiRequest],
        serializer_for: Callable[..., Any],
        exchange: Exchange,
    ) -> None:
        request, fields = await self._parse(exchange, parse)
        await self._answer(exchange, request, serializer_for, self._admit(exchange, request, fields))

    async def _respond(self, exchange: Exchange) -> None:
        """Answer a call of the Responses API, which may continue stored responses and be stored itself."""
        body = await self._identified_body(exchange)
        fields = await self._gateway.parse(len(body), partial(parse_body, body))
        is_stored, history = self._responses.is_stored(fields), await self._responses.history(fields, exchange)
        parse = partial(parse_response, fields, exchange.request_id, history, is_stored=is_stored)
        request = await self._gateway.parse(len(body), parse)
        admission = self._admit(exchange, request, fields)
        if is_stored:
            session = partial(session_of, exchange.headers, fields.members)
            await self._responses.create(exchange, request, fields, body, admission, session=session)
        else:
            await self._answer(exchange, request, responses_serializer, admission)

    def _admit(self, exchange: Exchange, request: ApiRequest, fields: Fields) -> AdmissionResult:
        return self._gateway.admit(
            estimate_from_spec(request.spec),
            exchange.credential,
            traceparent=exchange.traceparent,
            time_left=None if request.is_background else time_limit(exchange.header, is_streamed=request.stream),
            session=lambda: session_of(exchange.headers, fields.members),
            front=exchange.front_times,
        )

    async def _answer(
        self,
        exchange: Exchange,
        request: ApiRequest,
        serializer_for: Callable[..., Any],
        admission: AdmissionResult,
    ) -> None:
        traceparent = exchange.traceparent
        new_serializer = partial(_serializer, serializer_for, int(time.time()))
        if request.has_several_choices:
            await self._generate_choices(request, new_serializer, exchange, admission, traceparent)
            return
        write = write_stream if request.stream else write_whole
        generating = self._gateway.generate(request.spec, exchange.credential, admission, traceparent=traceparent)
        async with generating as events:
            exchange.on_disconnect, exchange.limit_headers = events.cancel, events.limit_headers
            await write(exchange, partial(new_serializer, events, request), events)

    async def _generate_choices(
        self,
        request: ApiRequest,
        new_serializer: Callable[..., Any],
        exchange: Exchange,
        admission: AdmissionResult,
        traceparent: str,
    ) -> None:
        generating = generate_choices(
            self._gateway,
            request.generated_spec,
            exchange.credential,
            admission,
            inputs=request.inputs,
            traceparent=traceparent,
        )
        async with generating as events:
            exchange.on_disconnect, exchange.limit_headers = events.cancel, events.limit_headers
            await write_choices(exchange, request, partial(new_serializer, events), events)

    async def _embed(self, exchange: Exchange) -> None:
        request, fields = await self._parse(exchange, parse_embeddings)
        try:
            embedded = await embed(
                self._gateway,
                request.call,
                exchange.credential,
                request.encoding,
                traceparent=exchange.traceparent,
                time_left=time_limit(exchange.header, is_streamed=False),
                session=lambda: session_of(exchange.headers, fields.members),
            )
        except PenstockError as error:
            headers = error.extra_metadata
            exchange.limit_headers = lambda: headers
            raise
        exchange.limit_headers = lambda: embedded.limit_headers
        await exchange.respond(200, embedding_list(embedded))

    async def _parse(self, exchange: Exchange, parse: Callable[[Fields, str], Parsed]) -> tuple[Parsed, Fields]:
        """Identify the caller, then receive and parse the body. Returns its fields, too."""
        body = await self._identified_body(exchange)
        return await self._gateway.parse(len(body), partial(_parsed, parse, body, exchange.request_id))

    async def _identified_body(self, exchange: Exchange) -> bytes:
        """Identify the caller, then receive the body. A caller without a valid key costs no more than its headers."""
        if exchange.identity_header:
            self._gateway.accept_identity_header(exchange.identity_header, exchange.credential)
        await self._gateway.authenticate(exchange.credential)
        exchange.mark_identified()
        return await exchange.body(self._body_budget)

    async def _count_tokens(self, exchange: Exchange) -> None:
        spec, session = await self._parsed_body(exchange, parse_count)
        spec = self._gateway.routed(spec, exchange.credential, session)
        await exchange.respond(200, counted_tokens(await self._gateway.count_tokens(spec)))

    async def _tokenize(self, exchange: Exchange) -> None:
        (spec, has_texts), session = await self._parsed_body(exchange, parse_tokenize)
        spec = self._gateway.routed(spec, exchange.credential, session)
        counted = await self._gateway.count_tokens(spec, include_token_ids=True)
        texts = await self._gateway.token_texts(spec.model, counted.token_ids) if has_texts else None
        await exchange.respond(200, tokenized(counted, texts))

    async def _detokenize(self, exchange: Exchange) -> None:
        spec, session = await self._parsed_body(exchange, parse_detokenize)
        spec = self._gateway.routed(spec, exchange.credential, session)
        assert isinstance(spec.input, TokenInput), "as it was parsed"
        await exchange.respond(200, detokenized(await self._gateway.detokenize(spec.model, spec.input.ids)))

    async def _parsed_body(
        self, exchange: Exchange, parse: Callable[[Fields], Parsed]
    ) -> tuple[Parsed, Callable[[], str]]:
        """Identify the caller, read and parse the body. Return also a function: the name of its conversation."""
        await self._gateway.identify(exchange.credential, exchange.identity_header)
        exchange.mark_identified()
        body = await exchange.body(self._body_budget)
        parsed, fields = await self._gateway.parse(len(body), partial(_parsed, parse, body))
        return parsed, lambda: session_of(exchange.headers, fields.members)

    async def _list_models(self, exchange: Exchange) -> None:
        models = await self._gateway.list_models(exchange.credential, exchange.identity_header)
        exchange.mark_identified()
        await exchange.respond(200, model_list(models, created=self._created))

    async def _show_model(self, exchange: Exchange) -> None:
        models = await self._gateway.list_models(exchange.credential, exchange.identity_header)
        exchange.mark_identified()
        await exchange.respond(
            200, model_object(models, exchange.path.removeprefix(MODEL_PREFIX), created=self._created)
        )

    async def _show_health(self, exchange: Exchange) -> None:
        """Report health to load balancers: 503 while the edge starts or drains."""
        status = self._status()
        await exchange.respond(200 if status == "serving" else 503, orjson.dumps({"status": status}))

    def _status(self) -> str:
        if current_stop().is_requested:
            return "draining"
        return "serving" if self._is_ready() else "starting"


def _parsed(parse: Callable[..., Parsed], body: bytes, *more: str) -> tuple[Parsed, Fields]:
    fields = parse_body(body)
    return parse(fields, *more), fields


def _serializer(
    serializer_for: Callable[..., Any], created: int, events: ResponseStream | ChoiceStream, request: ApiRequest
) -> Any:
    """Return the serializer of a response or of one choice, once it is accepted."""
    return serializer_for(request, created=created, output=events.output_format(), describe=events.describe_token)
