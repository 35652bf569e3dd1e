"""The same request over the two OpenAI APIs, streamed as server-sent events."""

import time
from typing import Any

import httpx
import orjson

from penstock.bench.load import BenchRequest
from penstock.bench.transcript import CANCELLED, OK, Transcript

DATA_PREFIX = "data: "
REJECTION_CODES = {429: "RESOURCE_EXHAUSTED", 503: "RESOURCE_EXHAUSTED", 504: "DEADLINE_EXCEEDED"}  # sheds; others fail

clock = time.perf_counter


class SseDriver:
    """`responses` or `chat`. SSE has no token indexes: pieces are timed, tokens are counted from the usage."""

    def __init__(self, http: httpx.AsyncClient, kind: str, model: str) -> None:
        self._http = http
        self._kind = kind
        self._model = model

    async def send(self, item: BenchRequest) -> Transcript:
        history = Transcript(item.number, clock())
        path, body = self._request(item)
        try:
            async with self._http.stream("POST", path, json=body) as response:
                if response.status_code != httpx.codes.OK:
                    _record_error_response(history, response, orjson.loads(await response.aread()))
                else:
                    await self._read(response, item, history)
        except httpx.HTTPError as error:
            history.end(clock(), type(error).__name__, "UNAVAILABLE")
        if not history.outcome:
            history.end(clock(), "STREAM_CUT", "UNAVAILABLE")
        return history

    def _request(self, item: BenchRequest) -> tuple[str, dict[str, Any]]:
        common = {"model": self._model, "stream": True, "temperature": 0, "ignore_eos": True}
        if self._kind == "responses":
            return "/responses", {**common, "input": item.prompt, "max_output_tokens": item.output_tokens}
        messages = [{"role": "user", "content": item.prompt}]
        limit = {"max_completion_tokens": item.output_tokens, "stream_options": {"include_usage": True}}
        return "/chat/completions", {**common, **limit, "messages": messages}

    async def _read(self, response: httpx.Response, item: BenchRequest, transcript: Transcript) -> None:
        async for line in response.aiter_lines():
            if not line.startswith(DATA_PREFIX) or line == "data: [DONE]":
                continue
            if item.cancel_after is not None and len(transcript.arrivals) > item.cancel_after:
                transcript.end(clock(), CANCELLED)
                return  # leaving the stream's block closes the connection: the disconnect is the cancel
            self._on_event(orjson.loads(line[len(DATA_PREFIX) :]), transcript)

    def _on_event(self, event: dict[str, Any], transcript: Transcript) -> None:
        if event.get("error"):
            transcript.end(clock(), str(event["error"].get("code")), "UNAVAILABLE")
        elif self._kind == "responses":
            _on_responses_event(event, transcript)
        else:
            _on_chat_event(event, transcript)


def _on_responses_event(event: dict[str, Any], transcript: Transcript) -> None:
    if event["type"] == "response.output_text.delta":
        transcript.arrivals.append(clock())
    elif event["type"] in ("response.completed", "response.incomplete"):
        transcript.tokens = event["response"]["usage"]["output_tokens"]
        transcript.end(clock(), OK)


def _on_chat_event(event: dict[str, Any], transcript: Transcript) -> None:
    if event["choices"] and event["choices"][0]["delta"].get("content"):
        transcript.arrivals.append(clock())
    if event.get("usage"):
        transcript.tokens = event["usage"]["completion_tokens"]
        transcript.end(clock(), OK)


def _record_error_response(transcript: Transcript, response: httpx.Response, body: dict[str, Any]) -> None:
    wait = response.headers.get("retry-after-ms")
    reason = str(body.get("error", {}).get("code") or response.status_code).upper()
    code = REJECTION_CODES.get(response.status_code, f"HTTP_{response.status_code}")
    transcript.end(clock(), reason, code, float(wait) / 1000 if wait else None)
