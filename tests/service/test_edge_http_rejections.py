"""Rejections of the OpenAI API over real connections: status, error body and limits of request bodies."""

import asyncio

import openai
import pytest

from edge_http import TIMEOUT_S, http_edge
from openai_calls import CREATE, wait_until
from penstock.chassis.errors import (
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    Overloaded,
    QuotaExceeded,
    Unauthenticated,
    Unavailable,
)
from penstock.edge.request import limits

REJECTIONS = [
    (Unauthenticated("no such key", reason="KEY_UNKNOWN"), 401, "invalid_api_key", openai.AuthenticationError),
    (InvalidArgument("600 tokens", reason="PROMPT_TOO_LONG"), 400, "context_length_exceeded", openai.BadRequestError),
    (NotFound("no model", reason="MODEL_UNKNOWN"), 404, "model_not_found", openai.NotFoundError),
    (QuotaExceeded("slow down", retry_after=2.5), 429, "rate_limit_exceeded", openai.RateLimitError),
    (Overloaded("full", reason="QUEUE_FULL", retry_after=0.25), 503, "queue_full", openai.InternalServerError),
    (Unavailable("none", reason="NO_WORKER", retry_after=1.0), 503, "no_worker", openai.InternalServerError),
    (DeadlineExceeded("too late"), 504, "deadline", openai.InternalServerError),
]


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(("error", "status", "code", "kind"), REJECTIONS)
async def test_a_rejection_before_accepted_is_an_http_status(error, status, code, kind, is_stream):
    async with http_edge() as edge:
        pending = asyncio.create_task(CREATE["/v1/chat/completions"](edge.api, stream=is_stream))
        call = await edge.gateway.call()
        call.fail(error)
        with pytest.raises(kind) as failure:
            await pending
        await call.wait_left()
    assert (failure.value.status_code, failure.value.code) == (status, code)
    assert error.message in str(failure.value)
    headers = failure.value.response.headers
    assert headers["x-request-id"] == call.spec.request_id
    if error.retry_after is None:
        assert (headers["x-should-retry"], headers.get("retry-after")) == ("false", None)
    else:
        assert headers["x-should-retry"] == "true"
        assert int(headers["retry-after-ms"]) == error.retry_after * 1000
        assert int(headers["retry-after"]) >= error.retry_after


async def test_a_full_edge_rejects_before_any_other_check():
    async with http_edge() as edge:
        edge.gateway.rejection = Overloaded("this edge is full", reason="EDGE_FULL", retry_after=0.5)
        response = await edge.post(stream=True)
    assert (response.status_code, response.headers["retry-after-ms"]) == (503, "500")
    assert response.json()["error"]["code"] == "edge_full"


async def test_internal_errors_do_not_reach_callers():
    async with http_edge() as edge:
        edge.gateway.rejection = RuntimeError("the secret is 42")
        response = await edge.post()
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "internal error"
    assert "42" not in response.text


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/", b"", 404, "path_unknown"),
        ("POST", "/v1/images/generations", b"{}", 404, "path_unknown"),
        ("GET", "/v1/responses", b"", 405, "method_not_allowed"),
        ("DELETE", "/v1/models/tiny", b"", 405, "method_not_allowed"),
        ("POST", "/v1/responses", b"{", 400, "invalid_argument"),
        ("POST", "/v1/responses", b"[]", 400, "invalid_argument"),
        ("POST", "/v1/responses", b"", 400, "invalid_argument"),
        ("POST", "/v1/chat/completions", b'{"messages": "hi"}', 400, "invalid_argument"),
    ],
)
async def test_invalid_requests_are_rejected_in_the_format_of_the_api(method, path, body, status, code):
    async with http_edge() as edge:
        response = await edge.http.request(method, path, content=body)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    error = response.json()["error"]
    assert error["code"] == code
    assert set(error) == {"message", "type", "code", "param"}
    assert response.headers.get("allow") == ({"GET": "POST", "DELETE": "GET"}[method] if status == 405 else None)


def body_of(size):
    """Return JSON of exactly `size` bytes, most of them in an unknown field."""
    frame = b'{"prompt":"hi","padding":""}'
    return frame[:-2] + b"x" * (size - len(frame)) + frame[-2:]


async def in_chunks(body):
    for start in range(0, len(body), 1 << 20):
        yield body[start : start + (1 << 20)]


@pytest.mark.parametrize("sent", ["at once", "in chunks"])
async def test_a_body_at_the_limit_is_read_and_one_byte_more_is_rejected(sent):
    async with http_edge() as edge:
        for size, is_taken in ((limits.BODY_BYTES, True), (limits.BODY_BYTES + 1, False)):
            body = body_of(size)
            content = body if sent == "at once" else in_chunks(body)
            pending = asyncio.create_task(edge.http.post("/v1/completions", content=content))
            if is_taken:
                call = await edge.gateway.call()
                call.accept()
                call.finish()
                assert (await pending).status_code == 200
            else:
                response = await pending
                assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")
        assert (await edge.http.get("/health")).status_code == 200


async def begun_body(edge, sent, announced):
    """A connection that has sent `sent` of `announced` bytes of a body."""
    reader, writer = await edge.connect()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: e\r\ncontent-length: {announced}\r\n\r\n"
    writer.write(head.encode() + b" " * sent)
    return reader, writer


async def status_of(reader):
    async with asyncio.timeout(TIMEOUT_S):
        return int((await reader.readline()).split()[1])


async def test_bodies_being_received_are_bounded_together(monkeypatch):
    monkeypatch.setattr(limits, "BODY_BUDGET_BYTES", 1_000)
    async with http_edge() as edge:
        _, first = await begun_body(edge, sent=600, announced=700)
        await wait_until(lambda: edge.front.body_bytes_held == 600)
        at_the_bound, second = await begun_body(edge, sent=400, announced=400)
        assert await status_of(at_the_bound) == 400  # read to its end: it is no JSON
        beyond, third = await begun_body(edge, sent=401, announced=401)
        assert await status_of(beyond) == 503
        first.close()
        await wait_until(lambda: edge.front.body_bytes_held == 0)
        afterwards, fourth = await begun_body(edge, sent=1_000, announced=1_000)
        assert await status_of(afterwards) == 400
        for writer in (second, third, fourth):
            writer.close()


async def test_a_stalled_body_times_out(monkeypatch):
    monkeypatch.setattr(limits, "BODY_READ_TIMEOUT_S", 0.05)
    async with http_edge() as edge:
        reader, writer = await begun_body(edge, sent=5, announced=10)
        assert await status_of(reader) == 408
        assert edge.front.body_bytes_held == 0
        writer.close()
