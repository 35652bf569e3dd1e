"""The OpenAI API over HTTP: paths to calls of the gateway, and back.

Plain ASGI: a framework's layers around `send` cost 2 us of every token's 10, and there are seven paths.
"""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import orjson

from penstock.chassis.errors import NotFound, PenstockError, Unavailable, error_from_failure, failure_from
from penstock.chassis.lifecycle import background, this_stop
from penstock.edge.gateway import Gateway
from penstock.edge.http.answer import send_answer, stream_answer
from penstock.edge.http.exchange import ClientGone, Exchange
from penstock.edge.http.intake import Intake
from penstock.edge.http.metrics import observe
from penstock.edge.openai.answer import ApiAnswer
from penstock.edge.openai.chat_answer import ChatAnswer
from penstock.edge.openai.chat_request import parse_chat
from penstock.edge.openai.completion_answer import CompletionAnswer
from penstock.edge.openai.completion_request import parse_completion
from penstock.edge.openai.errors import MethodNotAllowed
from penstock.edge.openai.fields import Fields, parse_body, quoted
from penstock.edge.openai.models import model_list, one_model
from penstock.edge.openai.request import ApiRequest
from penstock.edge.openai.response_answer import ResponseAnswer
from penstock.edge.openai.response_request import parse_response
from penstock.edge.request import limits
from penstock.edge.request.outline import outline_of

Serve = Callable[[Exchange], Awaitable[None]]

MODEL_PREFIX = "/v1/models/"
MODEL = MODEL_PREFIX + "{name}"  # the rest of the path, slashes and all
SILENCE = 10.0  # s; proxies and clients commonly give up on streams that say nothing for 30 to 60
ELSEWHERE = 0.1  # s; another edge can be tried at once


class HttpFront:
    """The ASGI application of one edge."""

    def __init__(self, gateway: Gateway, is_ready: Callable[[], bool], *, silence: float = SILENCE) -> None:
        self._gateway = gateway
        self._is_ready = is_ready
        self._silence = silence  # s, before a stream says that it lives
        self._created = int(time.time())
        self._intake = Intake(limits.INTAKE_BYTES)
        self._running: set[Exchange] = set()
        self._routes: dict[str, tuple[str, Serve]] = {
            "/health": ("GET", self._tell_health),
            "/v1/models": ("GET", self._list_models),
            MODEL: ("GET", self._show_model),
            "/v1/responses": ("POST", partial(self._generate, parse_response, ResponseAnswer)),
            "/v1/chat/completions": ("POST", partial(self._generate, parse_chat, ChatAnswer)),
            "/v1/completions": ("POST", partial(self._generate, parse_completion, CompletionAnswer)),
        }

    def __repr__(self) -> str:
        return f"<HttpFront {len(self._running)} running>"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        began = time.perf_counter()
        exchange = Exchange(scope, receive, send, silence=self._silence)
        self._running.add(exchange)
        has_left = False
        try:
            async with exchange.open():
                await self._serve_of(exchange)(exchange)
        except ClientGone:
            has_left = True
        except PenstockError as error:
            await exchange.fail(error)
        except Exception as error:  # noqa: BLE001  # logged there; its text is not for callers
            self._gateway.name_caller(error, exchange.credential)
            await exchange.fail(error_from_failure(failure_from(error)))
        finally:
            self._running.discard(exchange)
            took = time.perf_counter() - began
            observe(exchange.method, exchange.route, exchange.status, took, has_left=has_left)

    @property
    def bytes_coming_in(self) -> int:
        return self._intake.held

    def cut(self) -> int:
        """End what still runs, each with an error that says to ask elsewhere; return how many there were."""
        running = list(self._running)
        for exchange in running:
            exchange.cut(Unavailable("this edge drains; ask again", reason="DRAINING", retry_after=ELSEWHERE))
        return len(running)

    def _serve_of(self, exchange: Exchange) -> Serve:
        path, method = exchange.path, exchange.method
        route = MODEL if path.startswith(MODEL_PREFIX) else path
        if route not in self._routes:
            raise NotFound(f"nothing is served at {quoted(path)}; the API is below /v1", reason="PATH_UNKNOWN")
        exchange.route = route
        allowed, serve = self._routes[route]
        if method != allowed and (method, allowed) != ("HEAD", "GET"):
            raise MethodNotAllowed(path, allowed)
        return serve

    async def _generate(
        self,
        parse: Callable[[Fields, str], ApiRequest],
        shape_of: Callable[..., ApiAnswer],
        exchange: Exchange,
    ) -> None:
        body = await exchange.body(self._intake)
        request = await self._gateway.parsed(len(body), lambda: parse(parse_body(body), exchange.request_id))
        credential, traceparent = exchange.credential, exchange.header("traceparent")
        arrival = self._gateway.arrive(outline_of(request.spec), credential, traceparent=traceparent)
        shape = shape_of(request, created=int(time.time()))
        answer = stream_answer if request.stream else send_answer
        generating = self._gateway.generate(request.spec, credential, arrival, traceparent=traceparent)
        async with background(exchange.attend()), generating as events:
            exchange.when_gone = events.leave
            await answer(exchange, shape, events)

    async def _list_models(self, exchange: Exchange) -> None:
        models = await self._gateway.list_models(exchange.credential)
        await exchange.respond(200, model_list(models, created=self._created))

    async def _show_model(self, exchange: Exchange) -> None:
        models = await self._gateway.list_models(exchange.credential)
        await exchange.respond(200, one_model(models, exchange.path.removeprefix(MODEL_PREFIX), created=self._created))

    async def _tell_health(self, exchange: Exchange) -> None:
        """For load balancers: 503 keeps requests away, whether the edge is not there yet or about to go."""
        status = self._status()
        await exchange.respond(200 if status == "serving" else 503, orjson.dumps({"status": status}))

    def _status(self) -> str:
        if this_stop().is_asked:
            return "draining"
        return "serving" if self._is_ready() else "starting"
