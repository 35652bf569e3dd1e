"""Door of the gRPC API: a caller is identified from its metadata before any message of its call is read.

gRPC reads the message of a unary call, up to 16 MiB, before it calls the handler. Here all handlers take a stream of
requests, which is the same to a client, and read their one message themselves once they know the caller. Until then
HTTP/2's flow control holds back all but 64 KiB of each call.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Protocol

import grpc

from penstock.chassis.addresses import is_loopback
from penstock.chassis.errors import InvalidArgument, PenstockError
from penstock.chassis.security.identity import is_from_proxy
from penstock.chassis.server.interceptors import READS_ONE_MESSAGE
from penstock.chassis.server.write_timeout import write_responses
from penstock.chassis.streams.ticks import delay_to_tick
from penstock.edge.callers.connections import UnidentifiedCalls
from penstock.edge.callers.messages import MessageRead, UnfinishedMessages
from penstock.edge.request.caller import PROXY_HEADER_PREFIXES, credential_of, identity_header_of
from penstock.mesh.v1.admission_pb2 import Credential, Identity
from penstock.v1.batches_pb2_grpc import BatchesServicer, add_BatchesServicer_to_server
from penstock.v1.inference_pb2_grpc import InferenceServicer, add_InferenceServicer_to_server

SWEEP_INTERVAL_S = 0.5
CLOSE_REASON = "calls without a valid key"


class Callers(Protocol):
    """The gateway, as far as the door needs it."""

    def find_known(self, credential: Credential) -> Identity | None: ...

    def accept_identity_header(self, header: str, credential: Credential) -> bool: ...

    def is_being_identified(self, credential: Credential) -> bool: ...

    async def authenticate(self, credential: Credential) -> Identity: ...


class GrpcDoor:
    """Identifies callers, and bounds what unidentified callers keep busy and what unfinished messages hold."""

    def __init__(self, callers: Callers, unidentified: UnidentifiedCalls, messages: UnfinishedMessages) -> None:
        self._callers = callers
        self.unidentified = unidentified
        self.messages = messages
        self._reading: dict[MessageRead, tuple[asyncio.Timeout, list[PenstockError]]] = {}

    def add_to_server(self, servicer: InferenceServicer, server: Any) -> None:
        """Add the service to a server, with the door before each of its methods."""
        registrar: Any = _Registrar(self, server)
        add_InferenceServicer_to_server(servicer, registrar)

    def add_batches_to_server(self, servicer: BatchesServicer, server: Any) -> None:
        """Add the service of batches in the same way."""
        registrar: Any = _Registrar(self, server)
        add_BatchesServicer_to_server(servicer, registrar)

    def guarded(self, handler: Any) -> Any:
        """Return a handler that identifies the caller, then reads the message of a unary call, then runs `handler`."""
        if handler.request_streaming:
            method = self._before_stream(handler.stream_stream or handler.stream_unary)
        elif handler.response_streaming:
            method = self._before_message(handler.unary_stream)
        else:
            method = self._before_message(handler.unary_unary)
        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return make(method, handler.request_deserializer, handler.response_serializer)

    async def end_unfinished(self) -> None:
        """End messages that take too long or are too many. Runs beside the server."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(delay_to_tick(SWEEP_INTERVAL_S))
            self.sweep(loop.time())

    def sweep(self, now: float) -> None:
        for read, error in self.messages.excess(now):
            timeout, errors = self._reading[read]
            if not errors:
                errors.append(error)
                timeout.reschedule(0.0)

    def _before_stream(self, method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        is_generator = inspect.isasyncgenfunction(method)

        async def call(frames: Any, context: Any) -> Any:
            await self._identify(context)
            if not is_generator:
                return await method(frames, context)
            async with aclosing(method(frames, context)) as responses:
                await write_responses(context, responses)
            return None

        return call

    def _before_message(self, method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        is_generator = inspect.isasyncgenfunction(method)

        async def call(_: Any, context: Any) -> Any:
            identity = await self._identify(context)
            request = await self._read(context, identity.tenant_id)
            if not is_generator:
                return await method(request, context)
            async with aclosing(method(request, context)) as responses:
                await write_responses(context, responses)
            return None

        setattr(call, READS_ONE_MESSAGE, True)
        return call

    async def _read(self, context: Any, caller: str) -> Any:
        """Read the one message of a call."""
        read = self.messages.begin(caller, asyncio.get_running_loop().time())
        errors: list[PenstockError] = []
        try:
            async with asyncio.timeout(None) as timeout:
                self._reading[read] = timeout, errors
                request = await context.read()
        except TimeoutError:
            if not errors:
                raise
            raise errors[0] from None
        finally:
            self.messages.end(read)
            self._reading.pop(read, None)
        if request is grpc.aio.EOF:
            raise InvalidArgument("the call has no message; send one", reason="MESSAGE_MISSING")
        return request

    async def _identify(self, context: Any) -> Identity:
        peer, metadata, via_proxy = context.peer(), context.invocation_metadata() or (), is_from_proxy(context)
        credential = credential_of(metadata, peer, via_proxy=via_proxy)
        if via_proxy and (header := identity_header_of(metadata)):
            self._callers.accept_identity_header(header, credential)
        if known := self._callers.find_known(credential):
            self.unidentified.mark_known(peer)
            return known
        is_proxy = via_proxy or _is_proxy(metadata, peer)
        if self._callers.is_being_identified(credential):
            return await self._identify_with_others(credential, context, is_proxy=is_proxy)
        return await self._identify_unknown(credential, context, is_proxy=is_proxy)

    async def _identify_with_others(self, credential: Credential, context: Any, *, is_proxy: bool) -> Identity:
        """Wait for the answer about the key of another call. This asks auth nothing, so any number may wait."""
        try:
            return await self._callers.authenticate(credential)
        except PenstockError:
            if self.unidentified.on_failed(context.peer(), asyncio.get_running_loop().time(), is_proxy=is_proxy):
                context.disconnect(CLOSE_REASON)
            raise

    async def _identify_unknown(self, credential: Credential, context: Any, *, is_proxy: bool) -> Identity:
        peer = context.peer()
        self.unidentified.begin(peer, is_proxy=is_proxy)
        is_identified = False
        try:
            identity = await self._callers.authenticate(credential)
            is_identified = True
        except PenstockError as error:
            self.unidentified.refused[error.reason] += 1
            raise
        else:
            return identity
        finally:
            now = asyncio.get_running_loop().time()
            if self.unidentified.end(peer, now, is_identified=is_identified, is_proxy=is_proxy):
                context.disconnect(CLOSE_REASON)


def _is_proxy(metadata: Any, peer: str) -> bool:
    """Return whether a proxy on this host forwarded the call. Its connections carry the calls of many callers."""
    return is_loopback(peer) and any(name.startswith(PROXY_HEADER_PREFIXES) for name, _ in metadata)


class _Registrar:
    """Takes the place of the server while the generated code registers the methods."""

    def __init__(self, door: GrpcDoor, server: Any) -> None:
        self._door = door
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Does nothing: the handlers are registered by method, below."""

    def add_registered_method_handlers(self, service_name: str, methods: dict[str, Any]) -> None:
        guarded = {name: self._door.guarded(method) for name, method in methods.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service_name, guarded),))
        self._server.add_registered_method_handlers(service_name, guarded)
