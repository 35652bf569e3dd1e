"""Responses by id over HTTP: created stored or in the background, retrieved, streamed again, cancelled and deleted."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

import orjson

from penstock.chassis.errors import InvalidArgument, NotFound, Unavailable
from penstock.edge.api.http.exchange import Exchange
from penstock.edge.api.http.stored_stream import FROM_START, StoredStreamWriter
from penstock.edge.api.openai.body.fields import Fields, quoted
from penstock.edge.api.openai.common import ApiRequest, Json
from penstock.edge.api.openai.errors import MethodNotAllowed
from penstock.edge.api.openai.responses.input_items import item_page
from penstock.edge.api.openai.responses.stored import (
    ID_PREFIX,
    ResponsesFormat,
    accepted_of,
    deleted_object,
    queued_object,
)
from penstock.edge.gateway import Gateway
from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.request.estimate import AdmissionResult
from penstock.edge.request.validation import is_request_id
from penstock.edge.stored.held import HeldResponse
from penstock.edge.stored.service import StoredResponses
from penstock.edge.stored.vault import ResponseCall
from penstock.mesh.v1.responses_pb2 import ResponseKey, StoredRequest

RESPONSES_ROUTE = "/v1/responses"
RESPONSE_PREFIX = f"{RESPONSES_ROUTE}/"
RESPONSE_ROUTES = {"": f"{RESPONSE_PREFIX}{{id}}", "cancel": f"{RESPONSE_PREFIX}{{id}}/cancel"}
INPUT_ITEMS = "input_items"
NO_STORE = "this server stores no responses, because its operator has set no key for them"


class ResponseHandlers:
    """Serves the responses of one edge that are stored, and the paths below `/v1/responses/`."""

    def __init__(self, gateway: Gateway, stored: StoredResponses) -> None:
        self._gateway = gateway
        self._stored = stored
        self._format = ResponsesFormat()

    # Creation.

    def is_stored(self, fields: Fields) -> bool:
        """Whether a response will be stored. Raises InvalidArgument if the caller asks for what this server lacks."""
        asked, background = fields.get("store"), fields.flag("background")
        if asked is not None:
            fields.flag("store")
        if background and asked is False:
            raise InvalidArgument("a response in the background must be stored; leave out store", field="store")
        if (asked or background) and not self._stored.is_enabled:
            field = "background" if background else "store"
            raise InvalidArgument(f"{field} is true, which is not supported: {NO_STORE}", field=field)
        return bool(asked or background or (asked is None and self._stored.is_enabled and self._stored.is_reachable))

    async def history(self, fields: Fields, exchange: Exchange) -> list[Json]:
        """Return the items of the responses that a call continues. Raises NotFound, Unavailable or InvalidArgument."""
        name = "previous_response_id"
        if not (previous := fields.text(name)):
            return []
        if not self._stored.is_enabled:
            text = f"{name} is given, which is not supported: {NO_STORE}; send the earlier turns in `input`"
            raise InvalidArgument(text, field=name)
        key = await self._key(exchange, previous)
        return await self._stored.vault.history(key.tenant_id, previous)

    async def create(
        self,
        exchange: Exchange,
        request: ApiRequest,
        fields: Fields,
        body: bytes,
        admission: AdmissionResult,
        *,
        session: Callable[[], str],
    ) -> None:
        """Answer a call whose response is stored."""
        is_optional = fields.get("store") is None and not request.is_background
        response_id = f"{ID_PREFIX}{request.spec.request_id}"
        call = ResponseCall(
            key=await self._key(exchange, response_id),
            body=StoredRequest(body=body, created_at=int(time.time())),
            request=request,
            unstored_request=replace(request, is_stored=False) if is_optional else None,
            credential=exchange.credential,
            admission=admission,
            is_background=request.is_background,
            previous_response_id=request.previous_response_id or "",
            traceparent=exchange.traceparent,
            session=session(),
        )

        def on_created(context: RequestContext) -> None:
            exchange.limit_headers = lambda: context.limit_headers

        held = await self._stored.keeper.begin(call, on_created)
        held_request = _parsed(held)
        if request.is_background:
            if not request.stream:
                accepted = accepted_of(held_request, held.output)
                await exchange.respond(200, queued_object(held_request, accepted, held.created_at))
                return
        else:
            exchange.on_disconnect = lambda: self._stored.keeper.cancel(held)
        if request.stream:
            await StoredStreamWriter(exchange, held_request, held.created_at, held.output).run()
        else:
            await self._respond_whole(exchange, held)

    async def _respond_whole(self, exchange: Exchange, held: HeldResponse) -> None:
        output = held.output
        await output.wait(lambda: output.status is not None)
        if output.error:
            raise output.error
        body = held.object or self._format.whole(_parsed(held), held.created_at, output, output.status)
        await exchange.respond(200, body)

    # Retrieval.

    def handler_of(self, exchange: Exchange) -> Callable[[Exchange], Any]:
        """Return the handler of a path below `/v1/responses/`. Raises NotFound and MethodNotAllowed."""
        response_id, _, action = exchange.path.removeprefix(RESPONSE_PREFIX).partition("/")
        handlers: dict[tuple[str, str], Callable[[Exchange, str], Any]] = {
            ("", "GET"): self._retrieve,
            ("", "DELETE"): self._delete,
            ("cancel", "POST"): self._cancel,
            (INPUT_ITEMS, "GET"): self._list_input,
        }
        allowed = [method for known, method in handlers if known == action]
        if not allowed or not is_request_id(response_id):
            raise NotFound(f"nothing is served at {quoted(exchange.path)}", reason="PATH_UNKNOWN")
        exchange.route = f"{RESPONSE_PREFIX}{{id}}" + (f"/{action}" if action else "")
        if exchange.method not in allowed:
            raise MethodNotAllowed(exchange.path, " and ".join(allowed))
        serve = handlers[action, exchange.method]
        return lambda exchange: serve(exchange, response_id)

    async def _retrieve(self, exchange: Exchange, response_id: str) -> None:
        query = _query(exchange)
        streams = query.get("stream", "false").lower() == "true"
        view = await self._stored.retrieval.find(await self._key(exchange, response_id), follows=streams)
        request, output = view.request, view.output
        assert isinstance(request, ApiRequest), "as it was parsed"
        if streams:
            after = _starting_after(query)
            await StoredStreamWriter(exchange, request, view.created_at, output, starting_after=after).run()
            return
        body = view.object or self._format.whole(request, view.created_at, output, output.status)
        await exchange.respond(200, body)

    async def _cancel(self, exchange: Exchange, response_id: str) -> None:
        key = await self._key(exchange, response_id)
        await self._stored.retrieval.cancel(key)
        view = await self._stored.retrieval.find(key, follows=False)
        assert isinstance(view.request, ApiRequest), "as it was parsed"
        body = view.object or self._format.whole(view.request, view.created_at, view.output, view.output.status)
        await exchange.respond(200, body)

    async def _delete(self, exchange: Exchange, response_id: str) -> None:
        await self._stored.retrieval.delete(await self._key(exchange, response_id))
        await exchange.respond(200, deleted_object(response_id))

    async def _list_input(self, exchange: Exchange, response_id: str) -> None:
        stored = await self._stored.vault.read(await self._key(exchange, response_id))
        query = _query(exchange)
        items = orjson.loads(self._stored.vault.open_request(stored).body).get("input")
        page = item_page(
            items,
            response_id,
            order=query.get("order", "desc"),
            after=query.get("after", ""),
            limit=_whole(query, "limit", 20),
        )
        await exchange.respond(200, orjson.dumps(page))

    async def _key(self, exchange: Exchange, response_id: str) -> ResponseKey:
        """Return the key of a response of the caller's tenant. Raises the rejection of an unknown caller."""
        if exchange.identity_header:
            self._gateway.accept_identity_header(exchange.identity_header, exchange.credential)
        identity = await self._gateway.authenticate(exchange.credential)
        exchange.mark_identified()
        if not self._stored.is_enabled:
            raise NotFound(f"response {quoted(response_id)} does not exist: {NO_STORE}", reason="RESPONSE_UNKNOWN")
        if not identity.tenant_id:
            raise Unavailable("the caller's tenant is not known now", reason="AUTH_LOST", retry_after=1.0)
        return ResponseKey(tenant_id=identity.tenant_id, response_id=response_id)


def _parsed(held: HeldResponse) -> ApiRequest:
    assert isinstance(held.request, ApiRequest), "as it was parsed"
    return held.request


def _query(exchange: Exchange) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(exchange.query).items()}


def _starting_after(query: dict[str, str]) -> int:
    return _whole(query, "starting_after", FROM_START)


def _whole(query: dict[str, str], name: str, default: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        raise InvalidArgument(f"{name} is {quoted(text)}; it must be a whole number", field=name)
    return int(text)
