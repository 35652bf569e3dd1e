"""The OpenAI API over a real server and real connections, read by the unmodified OpenAI client and by a plain one."""

import asyncio
import json

import httpx
import openai
import pytest

from edge_http import PATIENCE, FakeGateway, http_edge
from otlp_receiver import attributes_of
from penstock.chassis.errors import (
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    Overloaded,
    QuotaExceeded,
    Unauthenticated,
    Unavailable,
)
from penstock.chassis.lifecycle import request_stop
from penstock.edge.flight.effects import Emit
from penstock.edge.http import server as http_server
from penstock.edge.http.front import HttpFront
from penstock.edge.request import limits

PIECE = 64 << 10  # bytes
HI = [{"role": "user", "content": "hi"}]
PATHS = ["/v1/responses", "/v1/chat/completions", "/v1/completions"]
ASK = {
    "/v1/responses": lambda api, **more: api.responses.create(model="tiny", input="hi", **more),
    "/v1/chat/completions": lambda api, **more: api.chat.completions.create(model="tiny", messages=HI, **more),
    "/v1/completions": lambda api, **more: api.completions.create(model="tiny", prompt="hi", **more),
}


def text_in(event):
    """The text that an event of any of the three streams adds."""
    if hasattr(event, "choices"):
        return "".join(each.text if hasattr(each, "text") else each.delta.content or "" for each in event.choices)
    return event.delta if event.type == "response.output_text.delta" else ""


def text_of(whole):
    if hasattr(whole, "output_text"):
        return whole.output_text
    choice = whole.choices[0]
    return choice.text if hasattr(choice, "text") else choice.message.content


async def next_text(events):
    async for event in events:
        if text := text_in(event):
            return text
    raise AssertionError("the stream ended")


async def next_line(lines):
    """The next line that is not empty."""
    async with asyncio.timeout(PATIENCE):
        async for line in lines:
            if line:
                return line
    raise AssertionError("the stream ended")


async def until(is_so):
    async with asyncio.timeout(PATIENCE):
        while not is_so():  # noqa: ASYNC110  # what is looked at has no event
            await asyncio.sleep(0)


# Answers.


@pytest.mark.parametrize("path", PATHS)
async def test_the_openai_client_sees_each_piece_before_the_next_is_made(path):
    async with http_edge() as edge:
        asked = asyncio.create_task(ASK[path](edge.api, stream=True))
        call = await edge.gateway.call()
        call.accept()
        async with await asked as events:
            for text in ("Wa", "ter", " é🙂"):
                call.say(text)
                assert await next_text(events) == text
            call.finish()
            rest = [event async for event in events]
        await call.is_left()
    assert all(not text_in(event) for event in rest)
    if path == "/v1/responses":
        assert rest[-1].type == "response.completed"
        assert rest[-1].response.output_text == "Water é🙂"
        assert (rest[-1].response.usage.input_tokens, rest[-1].response.usage.output_tokens) == (3, 3)
    else:
        assert rest[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("path", PATHS)
async def test_the_openai_client_gets_a_whole_answer_with_its_usage(path):
    async with http_edge() as edge:
        asked = asyncio.create_task(ASK[path](edge.api))
        call = await edge.gateway.call()
        call.accept()
        call.say("Wa", "ter")
        call.finish()
        answer = await asked
        await call.is_left()
    assert text_of(answer) == "Water"
    assert answer.usage.total_tokens == 5
    assert answer.model == "tiny"


async def test_pieces_that_are_ready_together_go_out_as_one():
    async with http_edge() as edge, edge.reading() as (response, call):
        call.say("a", "b", "c")
        call.finish()
        lines = [line async for line in response.aiter_lines() if line.startswith("data: {")]
    assert [json.loads(line[6:])["choices"][0]["text"] for line in lines] == ["abc", ""]


async def test_a_stream_says_how_it_wants_to_be_treated():
    async with http_edge() as edge, edge.reading() as (response, call):
        call.finish()
        await response.aread()
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert "server" not in response.headers


async def test_models_are_listed_and_shown_even_with_a_slash_in_the_name():
    async with http_edge() as edge:
        listed = await edge.api.models.list()
        shown = await edge.http.get("/v1/models/org/tiny")
        missing = await edge.http.get("/v1/models/huge")
        head = await edge.http.head("/v1/models")
    assert [model.id for model in listed.data] == ["org/tiny", "tiny"]
    assert (shown.json()["id"], shown.json()["max_model_len"]) == ("org/tiny", 64)
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
    assert (head.status_code, head.content) == (200, b"")


# What is told along with a request.


async def test_a_request_carries_its_caller_its_trace_and_its_id_down():
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"authorization": "Bearer k1", "traceparent": traceparent, "x-request-id": "mine:1"}
    async with http_edge() as edge:
        edge.http.headers.update(headers)
        async with edge.reading() as (response, call):
            call.finish()
            await response.aread()
    assert (call.credential.bearer, call.credential.loopback) == ("k1", True)
    assert call.traceparent == traceparent
    assert call.spec.request_id == response.headers["x-request-id"] == "mine:1"


async def test_a_request_without_a_usable_id_gets_one():
    async with http_edge() as edge:
        edge.http.headers["x-request-id"] = "not / one"
        async with edge.reading() as (response, call):
            call.finish()
            await response.aread()
        health = await edge.http.get("/health")
    assert response.headers["x-request-id"] == call.spec.request_id
    assert len(call.spec.request_id) == len(health.headers["x-request-id"]) == 32


async def test_a_caller_behind_a_proxy_is_where_the_proxy_says():
    async with http_edge() as edge:
        await edge.http.get("/v1/models")
        await edge.http.get("/v1/models", headers={"x-forwarded-for": "203.0.113.9"})
    assert [each.loopback for each in edge.gateway.credentials] == [True, False]


# Refusals.

REFUSALS = [
    (Unauthenticated("no such key", reason="KEY_UNKNOWN"), 401, "invalid_api_key", openai.AuthenticationError),
    (InvalidArgument("600 tokens", reason="PROMPT_TOO_LONG"), 400, "context_length_exceeded", openai.BadRequestError),
    (NotFound("no model", reason="MODEL_UNKNOWN"), 404, "model_not_found", openai.NotFoundError),
    (QuotaExceeded("slow down", retry_after=2.5), 429, "rate_limit_exceeded", openai.RateLimitError),
    (Overloaded("full", reason="QUEUE_FULL", retry_after=0.25), 503, "queue_full", openai.InternalServerError),
    (Unavailable("none", reason="NO_WORKER", retry_after=1.0), 503, "no_worker", openai.InternalServerError),
    (DeadlineExceeded("too late"), 504, "deadline", openai.InternalServerError),
]


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(("error", "status", "code", "kind"), REFUSALS)
async def test_who_is_refused_before_a_turn_sees_it_in_the_status(error, status, code, kind, is_stream):
    async with http_edge() as edge:
        asked = asyncio.create_task(ASK["/v1/chat/completions"](edge.api, stream=is_stream))
        call = await edge.gateway.call()
        call.fail(error)
        with pytest.raises(kind) as refused:
            await asked
        await call.is_left()
    assert (refused.value.status_code, refused.value.code) == (status, code)
    assert error.message in str(refused.value)
    headers = refused.value.response.headers
    assert headers["x-request-id"] == call.spec.request_id
    if error.retry_after is None:
        assert (headers["x-should-retry"], headers.get("retry-after")) == ("false", None)
    else:
        assert headers["x-should-retry"] == "true"
        assert int(headers["retry-after-ms"]) == error.retry_after * 1000
        assert int(headers["retry-after"]) >= error.retry_after


async def test_a_full_edge_refuses_before_anything_else():
    async with http_edge() as edge:
        edge.gateway.refusal = Overloaded("this edge is full", reason="EDGE_FULL", retry_after=0.5)
        refused = await edge.post(stream=True)
    assert (refused.status_code, refused.headers["retry-after-ms"]) == (503, "500")
    assert refused.json()["error"]["code"] == "edge_full"


async def test_what_went_wrong_inside_is_not_told_outside():
    async with http_edge() as edge:
        edge.gateway.refusal = RuntimeError("the secret is 42")
        refused = await edge.post()
    assert refused.status_code == 500
    assert refused.json()["error"]["message"] == "internal error"
    assert "42" not in refused.text


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/", b"", 404, "path_unknown"),
        ("POST", "/v1/embeddings", b"{}", 404, "path_unknown"),
        ("GET", "/v1/responses", b"", 405, "method_not_allowed"),
        ("DELETE", "/v1/models/tiny", b"", 405, "method_not_allowed"),
        ("POST", "/v1/responses", b"{", 400, "invalid_argument"),
        ("POST", "/v1/responses", b"[]", 400, "invalid_argument"),
        ("POST", "/v1/responses", b"", 400, "invalid_argument"),
        ("POST", "/v1/chat/completions", b'{"messages": "hi"}', 400, "invalid_argument"),
    ],
)
async def test_what_cannot_be_a_request_is_refused_in_the_shape_of_the_api(method, path, body, status, code):
    async with http_edge() as edge:
        refused = await edge.http.request(method, path, content=body)
    assert refused.status_code == status
    assert refused.headers["content-type"] == "application/json"
    assert refused.headers["x-request-id"]
    error = refused.json()["error"]
    assert error["code"] == code
    assert set(error) == {"message", "type", "code", "param"}
    assert refused.headers.get("allow") == ({"GET": "POST", "DELETE": "GET"}[method] if status == 405 else None)


def body_of(size):
    """JSON of exactly `size` bytes, most of them in a field that nobody reads."""
    frame = b'{"prompt":"hi","padding":""}'
    return frame[:-2] + b"x" * (size - len(frame)) + frame[-2:]


async def in_chunks(body):
    for start in range(0, len(body), 1 << 20):
        yield body[start : start + (1 << 20)]


@pytest.mark.parametrize("sent", ["at once", "in chunks"])
async def test_a_body_at_the_cap_is_read_and_one_byte_more_is_refused(sent):
    async with http_edge() as edge:
        for size, is_taken in ((limits.BODY_BYTES, True), (limits.BODY_BYTES + 1, False)):
            body = body_of(size)
            content = body if sent == "at once" else in_chunks(body)
            asked = asyncio.create_task(edge.http.post("/v1/completions", content=content))
            if is_taken:
                call = await edge.gateway.call()
                call.accept()
                call.finish()
                assert (await asked).status_code == 200
            else:
                refused = await asked
                assert (refused.status_code, refused.json()["error"]["code"]) == (413, "body_too_large")
        assert (await edge.http.get("/health")).status_code == 200


async def begun_body(edge, sent, announced):
    """A connection on which `sent` bytes of a body of `announced` bytes have come."""
    reader, writer = await edge.connect()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: e\r\ncontent-length: {announced}\r\n\r\n"
    writer.write(head.encode() + b" " * sent)
    return reader, writer


async def status_of(reader):
    async with asyncio.timeout(PATIENCE):
        return int((await reader.readline()).split()[1])


async def test_bodies_under_way_are_bounded_together(monkeypatch):
    monkeypatch.setattr(limits, "INTAKE_BYTES", 1_000)
    async with http_edge() as edge:
        _, first = await begun_body(edge, sent=600, announced=700)
        await until(lambda: edge.front.bytes_coming_in == 600)
        at_the_bound, second = await begun_body(edge, sent=400, announced=400)
        assert await status_of(at_the_bound) == 400  # read to its end: it is no JSON
        beyond, third = await begun_body(edge, sent=401, announced=401)
        assert await status_of(beyond) == 503
        first.close()
        await until(lambda: edge.front.bytes_coming_in == 0)
        afterwards, fourth = await begun_body(edge, sent=1_000, announced=1_000)
        assert await status_of(afterwards) == 400
        for writer in (second, third, fourth):
            writer.close()


async def test_a_body_that_does_not_go_on_is_given_up(monkeypatch):
    monkeypatch.setattr(limits, "BODY_SILENCE_S", 0.05)
    async with http_edge() as edge:
        reader, writer = await begun_body(edge, sent=5, announced=10)
        assert await status_of(reader) == 408
        assert edge.front.bytes_coming_in == 0
        writer.close()


# Failures under way.


async def test_a_stream_that_fails_under_way_ends_in_an_error_that_the_client_raises():
    async with http_edge() as edge:
        asked = asyncio.create_task(ASK["/v1/chat/completions"](edge.api, stream=True))
        call = await edge.gateway.call()
        call.accept()
        async with await asked as events:
            call.say("Wa")
            assert await next_text(events) == "Wa"
            call.fail(Unavailable("every worker is gone", reason="ATTEMPTS_EXHAUSTED"))
            with pytest.raises(openai.APIError, match="every worker is gone"):
                await next_text(events)
        await call.is_left()


async def test_a_response_that_fails_under_way_ends_in_its_failed_event():
    async with http_edge() as edge:
        asked = asyncio.create_task(ASK["/v1/responses"](edge.api, stream=True))
        call = await edge.gateway.call()
        call.accept()
        async with await asked as events:
            call.say("Wa")
            call.fail(Unavailable("every worker is gone", reason="ATTEMPTS_EXHAUSTED"))
            last = [event async for event in events][-1]
    assert last.type == "response.failed"
    assert last.response.error.message == "every worker is gone"
    assert last.response.output_text == "Wa"


# Leaving.


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("is_accepted", [True, False])
async def test_a_client_that_leaves_cancels_its_request(is_stream, is_accepted):
    async with http_edge() as edge:
        asked = asyncio.create_task(edge.post(stream=is_stream))
        call = await edge.gateway.call()
        if is_accepted:
            call.accept()
            call.say("Wa")
            await until(lambda: not call.stream.unread)
        assert not call.left.is_set()
        asked.cancel()
        await call.is_left()
        with pytest.raises(asyncio.CancelledError):
            await asked


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_forgotten():
    async with http_edge() as edge:
        _, writer = await edge.connect()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: edge\r\ncontent-length: 100\r\n\r\n{")
        await until(lambda: "1 running" in repr(edge.front))
        writer.close()
        await until(lambda: "0 running" in repr(edge.front))
        assert not edge.gateway.was_called


async def stall(call):
    """Say so much that nothing more is taken from the call; returns how many bytes were taken."""
    piece, taken = Emit("x" * PIECE, [1], 0, ()), 0
    while True:
        call.stream.emit(piece)
        for _ in range(1_000):
            if not call.stream.unread:
                break
            await asyncio.sleep(0)
        else:
            return taken
        taken += PIECE
        assert taken < 64 << 20


async def count_until_done(reader):
    """Bytes of x in the rest of a stream."""
    read = b""
    async with asyncio.timeout(PATIENCE):
        while b"[DONE]" not in read[-100:]:
            read += await reader.read(1 << 20)
    return read.count(b"x" * 64) * 64  # alone they are in words like `text`


async def test_a_client_that_does_not_read_holds_back_its_own_stream_alone():
    async with http_edge() as edge, edge.blind() as (reader, _, call), edge.reading() as (response, other):
        taken = await stall(call)
        other.say("Wa")
        assert '"text":"Wa"' in await next_line(response.aiter_lines())
        call.finish()
        assert await count_until_done(reader) == taken + PIECE


async def test_a_client_that_leaves_while_it_is_behind_is_noticed():
    async with http_edge() as edge, edge.blind() as (_, writer, call):
        await stall(call)
        assert not call.left.is_set()
        writer.close()
        await call.is_left()


async def test_a_client_that_never_reads_loses_its_connection(monkeypatch):
    monkeypatch.setattr(http_server, "STALLED", 500)  # ms
    async with http_edge() as edge, edge.blind() as (_, _, call):
        await stall(call)
        await call.is_left()


# Silence.


async def test_a_silent_stream_says_that_it_lives():
    async with http_edge(silence=0.05) as edge, edge.reading() as (response, call):
        lines = response.aiter_lines()
        for _ in range(3):
            assert await next_line(lines) == ": waiting"
        call.say("Wa")
        call.finish()
        rest = [line async for line in lines if line.startswith("data:")]
    assert rest[-1] == "data: [DONE]"


async def test_nothing_is_said_before_the_turn_has_come():
    async with http_edge(silence=0.01) as edge:
        asked = asyncio.create_task(edge.post(stream=True))
        call = await edge.gateway.call()
        await asyncio.sleep(0.05)  # many silences long
        call.fail(Overloaded("full", reason="QUEUE_FULL", retry_after=1.0))
        assert (await asked).status_code == 503


# Health and drain.


async def test_health_follows_readiness():
    ready, told = [], []
    front = HttpFront(FakeGateway(), lambda: bool(ready))
    async with httpx.AsyncClient(base_url="http://edge", transport=httpx.ASGITransport(front)) as http:
        told.append(await http.get("/health"))
        ready.append(True)
        told.append(await http.get("/health"))
        request_stop("test")
        told.append(await http.get("/health"))
    assert [(each.status_code, each.json()["status"]) for each in told] == [
        (503, "starting"),
        (200, "serving"),
        (503, "draining"),
    ]


async def test_a_drain_lets_streams_end_and_takes_nothing_new():
    async with http_edge(drain_grace=PATIENCE) as edge:
        async with edge.reading() as (response, call):
            call.say("Wa")
            request_stop("test")
            await edge.refuses_connections()
            assert not call.left.is_set()
            call.say("ter")
            call.finish()
            text = await response.aread()
        assert text.endswith(b"data: [DONE]\n\n")


async def test_after_the_grace_streams_end_in_an_error_and_the_rest_in_a_status():
    async with http_edge(drain_grace=PATIENCE) as edge:
        whole = asyncio.create_task(edge.post())
        unanswered = await edge.gateway.call()
        async with edge.reading() as (response, call):
            call.say("Wa")
            request_stop("test", grace=0.0)
            text = await response.aread()
        await call.is_left()
        await unanswered.is_left()
        assert (await whole).status_code == 503
    assert json.loads(text.decode().split("data: ")[-1])["error"]["code"] == "draining"
    assert (await whole).headers["retry-after-ms"] == "100"


async def test_a_second_request_to_stop_ends_the_waiting():
    async with http_edge(drain_grace=1_000 * PATIENCE) as edge, edge.reading() as (response, call):
        request_stop("test")
        await edge.refuses_connections()
        assert not call.left.is_set()
        request_stop("test")
        assert b"draining" in await response.aread()


# Measurements.


def counted(receiver):
    """(method, route, status) of every request measured so far."""
    names = ("http.request.method", "http.route", "http.response.status_code")
    points = receiver.wait_for_metric("http.server.request.duration").histogram.data_points
    labels = [attributes_of(point.attributes) for point in points]
    return {tuple(each.get(name) for name in names) for each in labels}


async def test_requests_are_measured_by_labels_that_no_caller_can_make_up(receiver):
    async with http_edge() as edge:
        await edge.http.get("/v1/models/org/tiny")
        await edge.http.get("/v1/models/huge")
        await edge.http.request("PURGE", "/v1/models/tiny")
        await edge.http.get("/pot")
    model = "/v1/models/{name}"
    expected = {("GET", model, 200), ("GET", model, 404), ("_OTHER", model, 405), ("GET", None, 404)}
    for _ in range(20):
        if expected <= counted(receiver):
            return
        receiver.wait_for_export()
    assert expected <= counted(receiver)
