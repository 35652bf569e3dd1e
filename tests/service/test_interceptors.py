"""Errors, cancellation and observation around handlers of every kind, on a real server."""

import asyncio
import secrets

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo, QuotaFailure, RetryInfo
from google.rpc.status_pb2 import Status
from structlog.testing import capture_logs

from inference_server import inference_server
from penstock.chassis.errors import Overloaded, QuotaExceeded
from penstock.chassis.observability import semconv
from penstock.chassis.observability.telemetry import current_traceparent
from penstock.chassis.observability.trace_context import trace_id_of
from penstock.chassis.server.call_metrics import current_call
from penstock.chassis.server.interceptors import READS_ONE_MESSAGE, guarded
from penstock.v1.failure_pb2 import QuotaViolation
from penstock.v1.inference_pb2 import (
    CountTokensRequest,
    CountTokensResponse,
    GenerateRequest,
    GenerateResponse,
    SessionRequest,
    SessionResponse,
)
from penstock.v1.stream_pb2 import End

RESPONSE = GenerateResponse()


def failing(kind, error):
    """Stub method name and handler of one kind that fails with `error` on its first step."""

    async def unary(request, context):
        raise error

    async def generator(request, context):
        raise error
        yield

    async def writer(request, context):
        await context.write(RESPONSE)
        raise error

    async def bidi_generator(frames, context):
        async for _ in frames:
            raise error
        yield

    async def bidi_reader(frames, context):
        await context.read()
        raise error

    async def group(request, context):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(unary(request, context))

    return {
        "unary": ("CountTokens", unary),
        "generator": ("Generate", generator),
        "writer": ("Generate", writer),
        "bidi generator": ("Session", bidi_generator),
        "bidi reader": ("Session", bidi_reader),
        "task group": ("CountTokens", group),
    }[kind]


async def drive(stub, method, **options):
    """Call a method of any kind to its end; returns its responses."""
    if method == "CountTokens":
        return [await stub.CountTokens(CountTokensRequest(), **options)]
    if method == "Generate":
        return [frame async for frame in stub.Generate(GenerateRequest(), **options)]
    return [frame async for frame in stub.Session(iter([SessionRequest()]), **options)]


async def failure_of(kind, error):
    method, handler = failing(kind, error)
    async with inference_server(**{method: handler}) as (stub, _):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await drive(stub, method)
    return failure.value


def details_of(failure):
    blob = dict(failure.trailing_metadata())["grpc-status-details-bin"]
    found = {}
    for detail in Status.FromString(blob).details:
        for kind in (ErrorInfo, RetryInfo, QuotaFailure):
            message = kind()
            if detail.Unpack(message):
                found[kind] = message
    return found


HANDLER_KINDS = ["unary", "generator", "writer", "bidi generator", "bidi reader", "task group"]


@pytest.mark.parametrize("kind", HANDLER_KINDS)
async def test_a_penstock_error_arrives_with_its_details_from_every_kind_of_handler(kind):
    failure = await failure_of(kind, Overloaded("full; retry later", retry_after=0.7, metadata={"depth": "9"}))
    assert (failure.code(), failure.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "full; retry later")
    details = details_of(failure)
    assert details[ErrorInfo] == ErrorInfo(reason="OVERLOADED", domain="penstock", metadata={"depth": "9"})
    assert details[RetryInfo].retry_delay.ToMilliseconds() == 700
    assert dict(failure.trailing_metadata())["grpc-retry-pushback-ms"] == "700"


async def test_a_quota_failure_names_the_limit_and_forbids_retries_without_a_time():
    over = QuotaViolation(subject="tenant:acme", description="60 requests a minute")
    failure = await failure_of("unary", QuotaExceeded("slow down", quota_violations=[over]))
    assert details_of(failure)[QuotaFailure].violations[0].subject == "tenant:acme"
    assert dict(failure.trailing_metadata())["grpc-retry-pushback-ms"] == "-1"


@pytest.mark.parametrize("kind", HANDLER_KINDS)
async def test_a_crash_is_logged_once_and_its_text_never_leaves(kind):
    with capture_logs() as logs:
        failure = await failure_of(kind, ValueError("the password is hunter2"))
    assert (failure.code(), failure.details()) == (grpc.StatusCode.INTERNAL, "internal error")
    assert "hunter2" not in str(failure.trailing_metadata())
    crashes = [each for each in logs if each["event"] == "handler_crashed"]
    assert len(crashes) == 1


async def test_a_group_with_a_crash_and_a_penstock_error_counts_as_a_crash():
    both = ExceptionGroup("two at once", [Overloaded("full"), KeyError("x")])
    failure = await failure_of("unary", both)
    assert failure.details() == "internal error"


async def test_a_handlers_own_abort_passes_unchanged():
    async def abort(request, context):
        await context.abort(grpc.StatusCode.ALREADY_EXISTS, "there is one")

    async with inference_server(CountTokens=abort) as (stub, _):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await drive(stub, "CountTokens")
    assert (failure.value.code(), failure.value.details()) == (grpc.StatusCode.ALREADY_EXISTS, "there is one")


async def test_a_handler_that_is_not_async_fails_inside():
    async with inference_server(CountTokens=lambda request, context: CountTokensResponse()) as (stub, _):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await drive(stub, "CountTokens")
    assert failure.value.code() is grpc.StatusCode.INTERNAL


async def test_a_timeout_at_the_calls_deadline_is_deadline_exceeded():
    async def slow(request, context):
        async with asyncio.timeout(context.time_remaining()):
            await asyncio.Event().wait()

    async with inference_server(CountTokens=slow) as (stub, _):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await drive(stub, "CountTokens", timeout=0.1)
    assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_timeout_that_is_not_the_callers_is_a_crash():
    async def slow(request, context):
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    async with inference_server(CountTokens=slow) as (stub, _):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await drive(stub, "CountTokens", timeout=30)
    assert failure.value.code() is grpc.StatusCode.INTERNAL


async def test_bidi_handlers_of_both_styles_echo_frame_by_frame():
    async def read_write(frames, context):
        while (frame := await context.read()) is not grpc.aio.EOF:
            await context.write(SessionResponse(end=frame.end))

    async def iterate(frames, context):
        async for frame in frames:
            yield SessionResponse(end=frame.end)

    for handler in (read_write, iterate):
        async with inference_server(Session=handler) as (stub, _):
            call = stub.Session()
            for name in ("a", "b", "c"):
                await call.write(SessionRequest(end=End(reason=name)))
                assert (await call.read()).end.reason == name
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("waits_at", ["yield", "await"])
async def test_a_cancel_reaches_the_finally_of_a_generator(waits_at):
    left = asyncio.Event()

    async def endless(request, context):
        try:
            yield RESPONSE
            if waits_at == "await":
                await asyncio.Event().wait()
            while True:
                yield RESPONSE
        finally:
            left.set()

    async with inference_server(Generate=endless) as (stub, _):
        call = stub.Generate(GenerateRequest())
        await call.read()
        call.cancel()
        async with asyncio.timeout(10):
            await left.wait()


def new_trace():
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    return trace_id, span_id, {"metadata": (("traceparent", f"00-{trace_id}-{span_id}-01"),)}


async def test_a_call_that_succeeds_is_a_span_below_its_caller(receiver):
    trace_id, span_id, options = new_trace()
    seen = []

    async def count(request, context):
        seen.append(current_traceparent.get())
        return CountTokensResponse()

    async with inference_server(CountTokens=count) as (stub, _):
        await drive(stub, "CountTokens", **options)
    [span] = receiver.wait_for_spans("penstock.v1.Inference/CountTokens", trace_id=trace_id)
    assert (span.parent_id, span.kind, span.status) == (span_id, "SERVER", "UNSET")
    assert span.attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": "penstock.v1.Inference/CountTokens",
        "rpc.response.status_code": "OK",
    }
    assert seen == [f"00-{trace_id}-{span.span_id}-01"]


@pytest.mark.parametrize(
    ("kind", "error", "code", "status", "reason"),
    [
        ("generator", QuotaExceeded("slow down"), "RESOURCE_EXHAUSTED", "UNSET", "QUOTA_EXCEEDED"),
        ("generator", Overloaded("full"), "RESOURCE_EXHAUSTED", "ERROR", "OVERLOADED"),  # samplers see shed load
        ("generator", ValueError("x"), "INTERNAL", "ERROR", "INTERNAL"),
        ("unary", ValueError("x"), "INTERNAL", "ERROR", "INTERNAL"),
    ],
)
async def test_a_failed_call_is_an_error_only_when_the_fault_is_ours(receiver, *, kind, error, code, status, reason):
    trace_id, _, options = new_trace()
    method, handler = failing(kind, error)
    async with inference_server(**{method: handler}) as (stub, _):
        with pytest.raises(grpc.aio.AioRpcError):
            await drive(stub, method, **options)
    [span] = receiver.wait_for_spans(f"penstock.v1.Inference/{method}", trace_id=trace_id)
    assert (span.attributes["rpc.response.status_code"], span.status) == (code, status)
    assert span.attributes["penstock.reason"] == reason
    assert span.attributes.get("error.type") == (code if code == "INTERNAL" else None)


async def endless(request, context):
    yield RESPONSE
    await asyncio.Event().wait()


async def test_a_call_past_its_deadline_is_distinguished_from_a_cancelled_one(receiver):
    late, _, late_options = new_trace()
    cancelled, _, cancel_options = new_trace()
    async with inference_server(Generate=endless) as (stub, _):
        with pytest.raises(grpc.aio.AioRpcError):
            await drive(stub, "Generate", timeout=0.2, **late_options)
        call = stub.Generate(GenerateRequest(), timeout=30, **cancel_options)
        await call.read()
        call.cancel()
        [deadline_span] = receiver.wait_for_spans("penstock.v1.Inference/Generate", trace_id=late)
        [cancel_span] = await asyncio.to_thread(
            receiver.wait_for_spans, "penstock.v1.Inference/Generate", trace_id=cancelled
        )
    code = "rpc.response.status_code"
    assert (deadline_span.attributes[code], deadline_span.status) == ("DEADLINE_EXCEEDED", "ERROR")
    assert (cancel_span.attributes[code], cancel_span.status) == ("CANCELLED", "UNSET")


def test_a_guard_keeps_the_mark_of_a_call_that_reads_one_message():
    async def method(frames, context):
        pass

    async def guard(context, body):
        return await body()

    setattr(method, READS_ONE_MESSAGE, True)
    handler = grpc.stream_stream_rpc_method_handler(method)
    assert getattr(guarded(guarded(handler, guard), guard).stream_stream, READS_ONE_MESSAGE)


async def test_a_message_that_names_another_trace_moves_the_span_of_its_call_there(receiver):
    transport, span_id, options = new_trace()
    named, _, _ = new_trace()
    seen = []

    async def count(request, context):
        given = f"00-{named}-{span_id}-01"
        seen.extend((current_call.get().continue_trace(given), current_call.get().continue_trace("")))
        return CountTokensResponse()

    async with inference_server(CountTokens=count) as (stub, _):
        await drive(stub, "CountTokens", **options)
    [span] = await asyncio.to_thread(receiver.wait_for_spans, "penstock.v1.Inference/CountTokens", trace_id=named)
    assert seen == [f"00-{named}-{span.span_id}-01"] * 2
    assert (span.parent_id, span.links) == (span_id, ((transport, span_id),))


async def test_a_session_that_is_rejected_has_a_span(receiver):
    trace_id, span_id, options = new_trace()

    async def session(frames, context):
        raise Overloaded("full")
        yield

    async with inference_server(Session=session) as (stub, _):
        with pytest.raises(grpc.aio.AioRpcError):
            await drive(stub, "Session", **options)
    [span] = await asyncio.to_thread(receiver.wait_for_spans, "penstock.v1.Inference/Session", trace_id=trace_id)
    assert (span.kind, span.status, span.parent_id) == ("SERVER", "ERROR", span_id)
    assert span.attributes["penstock.reason"] == "OVERLOADED"


async def test_a_session_has_no_span(receiver):
    trace_id, _, options = new_trace()

    async def session(frames, context):
        async for frame in frames:
            yield SessionResponse(end=frame.end)

    async def count(request, context):
        return CountTokensResponse()

    async with inference_server(Session=session, CountTokens=count) as (stub, _):
        await drive(stub, "Session", **options)
        await drive(stub, "CountTokens", **options)
    spans = receiver.wait_for_spans("penstock.v1.Inference/CountTokens", trace_id=trace_id)
    assert [each.name for each in spans] == ["penstock.v1.Inference/CountTokens"]


async def test_durations_are_counted_by_method_and_status_in_the_conventional_buckets(receiver):
    async def lose(request, context):
        await context.abort(grpc.StatusCode.DATA_LOSS, "gone")  # a status that no other test has

    async with inference_server(CountTokens=lose) as (stub, _):
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError):
                await drive(stub, "CountTokens")

    def counted():
        metric = receiver.wait_for_metric(semconv.RPC_SERVER_CALL_DURATION)
        assert metric.unit == "s"
        for point in metric.histogram.data_points:
            assert tuple(point.explicit_bounds) == semconv.RPC_DURATION_BUCKETS
            labels = {pair.key: pair.value.string_value for pair in point.attributes}
            if labels["rpc.response.status_code"] == "DATA_LOSS":
                assert labels["rpc.method"] == "penstock.v1.Inference/CountTokens"
                assert labels["error.type"] == "DATA_LOSS"
                return point.count
        return 0

    async with asyncio.timeout(20):
        while counted() < 3:
            await asyncio.to_thread(receiver.wait_for_export)
    assert counted() == 3


async def test_log_lines_of_a_handler_carry_its_method_and_trace():
    trace_id, _, options = new_trace()
    bound = {}

    async def count(request, context):
        import structlog

        bound.update(structlog.contextvars.get_contextvars())
        return CountTokensResponse()

    async with inference_server(CountTokens=count) as (stub, _):
        await drive(stub, "CountTokens", **options)
    assert bound == {"rpc": "penstock.v1.Inference/CountTokens", "trace_id": trace_id}


async def test_a_malformed_traceparent_starts_a_new_trace(receiver):
    seen = []

    async def count(request, context):
        seen.append(trace_id_of(current_traceparent.get()))
        return CountTokensResponse()

    async with inference_server(CountTokens=count) as (stub, _):
        await drive(stub, "CountTokens", metadata=(("traceparent", "00-zz-zz-01"),))
    assert len(seen[0]) == 32
