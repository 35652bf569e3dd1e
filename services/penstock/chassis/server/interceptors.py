"""Server interceptors: the one place where an exception becomes a status and a call is observed.

Every kind of handler runs as one coroutine in one context. The responses of a generator are written here, so that no
context manager of ours is open across a `yield` that may be closed elsewhere. Handlers that read and write on their
context pass through unchanged.

A message that does not parse fails its call with INVALID_ARGUMENT. gRPC itself would log a traceback for each and send
UNKNOWN with the parser's text.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import grpc
import structlog
from grpc.aio import ServicerContext

from penstock.chassis.errors import DeadlineExceeded, Internal, InvalidArgument, PenstockError
from penstock.chassis.observability.telemetry import current_traceparent
from penstock.chassis.observability.trace_context import TRACE_ID, traceparent_or_empty
from penstock.chassis.server.call_metrics import CallCounter, CallMetrics, current_call
from penstock.chassis.server.write_timeout import ABORT_TIMEOUT_S, ClientTooSlow, write_responses
from penstock.chassis.streams.endpoint import FrameOutOfRange, counters

Deserialize = Callable[[bytes], Any]


class MessageMalformed(InvalidArgument):
    """The bytes of a message do not parse as the type that its method takes."""

    default_reason = "MESSAGE_MALFORMED"

    def __init__(self, size: int) -> None:
        super().__init__(f"a message of {size} bytes does not parse; send the type that this method takes")
        self.size = size  # bytes


def checked(deserialize: Deserialize | None, *, is_stream: bool) -> Deserialize | None:
    """Return `deserialize` with a MessageMalformed in place of its errors.

    It is raised where a stream's messages are read. The single message of other calls is parsed before the handler
    runs, so there the error is returned in place of the message.
    """
    if deserialize is None:
        return None

    def parsed(raw: bytes) -> Any:
        try:
            return deserialize(raw)
        except Exception as error:  # each protobuf runtime raises its own types
            malformed = MessageMalformed(len(raw))
            if is_stream:
                raise malformed from error
            return malformed

    return parsed


log = structlog.get_logger()

Context = ServicerContext[Any, Any]
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]
Body = Callable[[], Awaitable[Any]]
Guard = Callable[[Context, Body], Awaitable[Any]]

# Attribute of a method that takes a stream of requests and reads one message from it: no session.
READS_ONE_MESSAGE = "reads_one_message"

# Calls of operators and probes. They do not count as work, so that a watch does not delay a drain, and are not traced.
OPERATION_PREFIXES = ("grpc.", "penstock.v1.Admin/")

_HANDLER_FACTORIES = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}


_guarded_methods: WeakSet[Any] = WeakSet()


def guarded(handler: Any, guard: Guard) -> Any:
    """Return `handler` with `guard(context, body)` around each call, where `await body()` runs the call.

    `body` raises a request that is a MessageMalformed, the innermost one if guards are nested, so that a caller is
    authorized before it is told about its message.
    """
    kind, make = _HANDLER_FACTORIES[handler.request_streaming, handler.response_streaming]
    method = getattr(handler, kind)
    is_generator = inspect.isasyncgenfunction(method)
    is_guarded = method in _guarded_methods

    async def call(request: Any, context: Context) -> Any:
        async def body() -> Any:
            if isinstance(request, MessageMalformed) and not is_guarded:
                raise request
            if not is_generator:
                return await method(request, context)
            async with aclosing(method(request, context)) as responses:
                await write_responses(context, responses)
            return None

        return await guard(context, body)

    if getattr(method, READS_ONE_MESSAGE, False):
        setattr(call, READS_ONE_MESSAGE, True)
    _guarded_methods.add(call)
    return make(call, handler.request_deserializer, handler.response_serializer)


@dataclass(frozen=True)
class CallInterceptor(grpc.aio.ServerInterceptor):
    """Maps exceptions to statuses, binds trace ids, counts and observes calls. The outermost interceptor."""

    calls: CallCounter = field(default_factory=CallCounter)
    _guarded: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # by method: the handler, and the guarded one

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method.removeprefix("/")
        known, guarded_handler = self._guarded.get(method, (None, None))
        if known is not handler:  # an interceptor may make a handler for each call, which is then guarded for each
            guarded_handler = self._with_guard(method, handler)
            self._guarded[method] = handler, guarded_handler
        return guarded_handler

    def _with_guard(self, method: str, handler: Any) -> Any:
        is_operation = method.startswith(OPERATION_PREFIXES)
        # A span over a session of days has no use; its requests have spans of their own.
        is_session = (
            handler.request_streaming
            and handler.response_streaming
            and not getattr(handler.stream_stream, READS_ONE_MESSAGE, False)
        )

        async def guard(context: Context, body: Body) -> Any:
            metrics = CallMetrics(method, traceparent_in(context), is_observed=not (is_operation or is_session))
            current_call.set(metrics)
            current_traceparent.set(metrics.traceparent)
            with (
                self.calls.count(is_work=not is_operation),
                structlog.contextvars.bound_contextvars(rpc=method, **_trace_fields(metrics.traceparent)),
            ):
                return await _run_call(metrics, context, body)

        return guarded(_checking(handler), guard)


def _checking(handler: Any) -> Any:
    """Return `handler` with malformed messages reported as errors of the sender."""
    kind, make = _HANDLER_FACTORIES[handler.request_streaming, handler.response_streaming]
    deserialize = checked(handler.request_deserializer, is_stream=handler.request_streaming)
    return make(getattr(handler, kind), deserialize, handler.response_serializer)


async def _run_call(metrics: CallMetrics, context: Context, body: Body) -> Any:
    """Run the call and turn its exception into a status."""
    try:
        result = await body()
    except asyncio.CancelledError:
        metrics.end("DEADLINE_EXCEEDED" if is_past_deadline(context) else "CANCELLED")
        raise
    except grpc.aio.AbortError:
        metrics.end(code_name(context))
        raise
    except Exception as crash:  # noqa: BLE001  # grpc.aio would send str(crash) to the caller
        error = caller_error(crash, context)
        metrics.end(error.code.name, error)
        with suppress(TimeoutError):  # a client that does not read may never read its status
            async with asyncio.timeout(ABORT_TIMEOUT_S if isinstance(error, ClientTooSlow) else None):
                await context.abort(error.code, error.message, error.trailing_metadata())
        raise grpc.aio.AbortError from None
    else:
        metrics.end(code_name(context))
        return result


def caller_error(error: Exception, context: Context) -> PenstockError:
    """Return the error to send for `error`. An error of another type is logged and sent as "internal error"."""
    found = first_penstock_error(error)
    if isinstance(found, MessageMalformed):
        counters.malformed_messages += 1
        log.warning("message_malformed", peer=context.peer(), bytes=found.size)
    if isinstance(found, FrameOutOfRange):
        log.warning("frame_out_of_range", peer=context.peer(), because=found.message)
    if found:
        return found
    if isinstance(error, TimeoutError) and is_past_deadline(context):
        return DeadlineExceeded("the deadline of the call passed before its response was ready")
    log.error("handler_crashed", exc_info=error)
    return Internal("internal error")


def first_penstock_error(error: BaseException) -> PenstockError | None:
    """Return the first PenstockError in `error` or its groups; None if a group also holds an error of another type."""
    if isinstance(error, PenstockError):
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    found = [first_penstock_error(each) for each in error.exceptions]
    return found[0] if all(found) else None


def is_past_deadline(context: Context) -> bool:
    remaining: float | None = context.time_remaining()
    return remaining is not None and remaining <= DEADLINE_TOLERANCE_S


DEADLINE_TOLERANCE_S = 0.01  # the client's timer may end a call slightly before the deadline of the server


def code_name(context: Context) -> str:
    """Name of the status that the handler has set; OK if it set none."""
    code: Any = context.code() or 0
    return code.name if isinstance(code, grpc.StatusCode) else _CODE_NAMES.get(code, "UNKNOWN")


_CODE_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


def traceparent_in(context: Context) -> str:
    """Return the traceparent of a call's metadata; empty if there is none or it is malformed."""
    for key, value in context.invocation_metadata() or ():
        if key == "traceparent" and isinstance(value, str):
            return traceparent_or_empty(value)
    return ""


def _trace_fields(traceparent: str) -> dict[str, str]:
    return {"trace_id": traceparent[TRACE_ID]} if traceparent else {}
