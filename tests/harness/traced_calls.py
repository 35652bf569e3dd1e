"""One traced request through the proxy at each door, and the shape that every trace of the mesh must have."""

import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import grpc
import httpx

from mesh import LocalMesh, greedy
from otlp_receiver import ReceivedSpan
from penstock.chassis.channels import channel
from penstock.chassis.errors import PenstockError
from penstock.client import Client, RetryPolicy
from penstock.v1.inference_pb2 import GenerateRequest
from penstock.v1.inference_pb2_grpc import InferenceStub

MAX_OVERLAP_NS = 1_000_000  # of a span beyond its parent
PROXY = "penstock-envoy"  # service of its spans
CLIENT_SPAN = "00f067aa0ba902b7"
NO_RETRIES = RetryPolicy(max_attempts=1)
GUESS = "pk_unknown_" + "0123456789abcdef" * 2
SERVERS = {  # name of the SERVER span of the edge at each door
    "grpc": "penstock.v1.Inference/Generate",
    "session": "text_completion tiny",
    "http": "POST /v1/completions",
}


@dataclass(frozen=True)
class TracedCall:
    """A request of its own trace. `tokens` yields its tokens' indexes and raises the error that it ends in."""

    mesh: LocalMesh
    door: str
    key: str
    tokens_wanted: int = 8
    timeout: float = 20.0  # s
    trace_id: str = ""

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{CLIENT_SPAN}-01"

    def tokens(self) -> AsyncIterator[int]:
        return DOORS[self.door](self)


async def _grpc_tokens(call: TracedCall) -> AsyncIterator[int]:
    metadata = (("authorization", f"Bearer {call.key}"), ("traceparent", call.traceparent))
    request = GenerateRequest(**greedy("a prompt", call.tokens_wanted), timeout=timedelta(seconds=call.timeout))
    async with channel(call.mesh.plan.proxy) as to_proxy:
        stream = InferenceStub(to_proxy).Generate(request, metadata=metadata, timeout=30.0, wait_for_ready=True)
        try:
            async for frame in stream:
                for index, _ in enumerate(frame.delta.token_ids, frame.delta.first_index):
                    yield index
        finally:
            stream.cancel()


async def _session_tokens(call: TracedCall) -> AsyncIterator[int]:
    async with (
        Client(call.mesh.plan.proxy, api_key=call.key, retries=NO_RETRIES) as client,
        client.session(traceparent=call.traceparent) as session,
        session.generate(
            "a prompt",
            max_output_tokens=call.tokens_wanted,
            ignore_eos=True,
            temperature=0.0,
            timeout=call.timeout,
        ) as generation,
    ):
        index = 0
        async for chunk in generation:
            for _ in chunk.token_ids:
                yield index
                index += 1


async def _http_tokens(call: TracedCall) -> AsyncIterator[int]:
    headers = {
        "authorization": f"Bearer {call.key}",
        "traceparent": call.traceparent,
        "x-request-timeout-ms": str(round(1e3 * call.timeout)),
    }
    body = {"prompt": "a prompt", "max_tokens": call.tokens_wanted, "stream": True, "ignore_eos": True}
    async with (
        httpx.AsyncClient(base_url=f"http://{call.mesh.plan.proxy}/v1", headers=headers, timeout=30.0) as http,
        http.stream("POST", "/completions", json=body) as response,
    ):
        if response.is_error:
            await response.aread()  # a client that leaves before the body ends the proxy's span early
        response.raise_for_status()
        index = 0
        async for line in response.aiter_lines():
            data = line.removeprefix("data: ")
            if not data.startswith("{"):
                continue
            if "error" in (event := json.loads(data)):
                raise httpx.HTTPStatusError(event["error"]["code"], request=response.request, response=response)
            if event["choices"] and event["choices"][0]["finish_reason"] is None:
                yield index
                index += 1


DOORS: dict[str, Callable[[TracedCall], AsyncIterator[int]]] = {
    "grpc": _grpc_tokens,
    "session": _session_tokens,
    "http": _http_tokens,
}
CALL_ERRORS = (grpc.aio.AioRpcError, PenstockError, httpx.HTTPStatusError)


async def is_rejected(call: TracedCall) -> bool:
    """Run a call to its end. Returns whether it ended in an error."""
    with suppress(*CALL_ERRORS):
        async for _ in call.tokens():
            pass
        return False
    return True


def new_trace_id() -> str:
    return secrets.token_hex(16)


def check_trace(spans: list[ReceivedSpan], *, was_stopped: bool = False) -> None:
    """Check that the spans form one tree below the client's span, each within its parent.

    was_stopped: the request was cancelled or ended by a timer, which each process learns for itself a moment later.
    Then only spans of one tier are compared. The proxy's own two spans end as its two connections do.
    """
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    for span in spans:
        parent = by_id.get(span.parent_id)
        assert parent or span.parent_id == CLIENT_SPAN, f"{span.name} has no parent in {sorted(by_id)}"
        assert span.start_unix_nano <= span.end_unix_nano
        if (
            parent is None
            or (parent.service == span.service == PROXY)
            or (was_stopped and parent.service != span.service)
        ):
            continue
        late = (span.end_unix_nano - parent.end_unix_nano) / 1e6
        assert span.end_unix_nano <= parent.end_unix_nano + MAX_OVERLAP_NS, f"{span.name} ends {late} ms late"
    # A session whose key is refused connects again.
    assert {span.kind for span in spans if span.parent_id == CLIENT_SPAN} == {"SERVER"}, "the proxy's spans"


def outline(spans: list[ReceivedSpan]) -> str:
    """The tree, as text for a failure."""
    first = min(span.start_unix_nano for span in spans)
    lines = []
    for span in sorted(spans, key=lambda each: each.start_unix_nano):
        begin, end = ((each - first) / 1e6 for each in (span.start_unix_nano, span.end_unix_nano))
        reason = span.attributes.get("penstock.reason", "")
        names = f"{span.service} {span.name} {span.kind} {span.status} {reason}"
        lines.append(f"{begin:9.2f} {end:9.2f} {span.span_id[:4]} < {span.parent_id[:4]} {names}")
    return "\n".join(lines)
