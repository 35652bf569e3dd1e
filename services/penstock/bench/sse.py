"""The same request over the two OpenAI APIs, streamed as server-sent events."""

import time
from typing import Any

import httpx
import orjson

from penstock.bench.history import CANCELLED, OK, History
from penstock.bench.load import Item

DATA = "data: "
CODES = {429: "RESOURCE_EXHAUSTED", 503: "RESOURCE_EXHAUSTED", 504: "DEADLINE_EXCEEDED"}  # sheds; others fail

clock = time.perf_counter


class SseApi:
    """`responses` or `chat`. SSE has no token indexes: pieces are timed, tokens are counted from the usage."""

    def __init__(self, http: httpx.AsyncClient, kind: str, model: str) -> None:
        self._http = http
        self._kind = kind
        self._model = model

    async def send(self, item: Item) -> History:
        history = History(item.number, clock())
        path, body = self._request(item)
        try:
            async with self._http.stream("POST", path, json=body) as response:
                if response.status_code != httpx.codes.OK:
                    _refused(history, response, orjson.loads(await response.aread()))
                else:
                    await self._read(response, item, history)
        except httpx.HTTPError as error:
            history.end(clock(), type(error).__name__, "UNAVAILABLE")
        if not history.outcome:
            history.end(clock(), "STREAM_CUT", "UNAVAILABLE")
        return history

    def _request(self, item: Item) -> tuple[str, dict[str, Any]]:
        common = {"model": self._model, "stream": True, "temperature": 0, "ignore_eos": True}
        if self._kind == "responses":
            return "/responses", {**common, "input": item.prompt, "max_output_tokens": item.output_tokens}
        messages = [{"role": "user", "content": item.prompt}]
        limit = {"max_completion_tokens": item.output_tokens, "stream_options": {"include_usage": True}}
        return "/chat/completions", {**common, **limit, "messages": messages}

    async def _read(self, response: httpx.Response, item: Item, history: History) -> None:
        async for line in response.aiter_lines():
            if not line.startswith(DATA) or line == "data: [DONE]":
                continue
            if item.cancel_after is not None and len(history.arrivals) > item.cancel_after:
                history.end(clock(), CANCELLED)
                return  # leaving the stream's block closes the connection: the disconnect is the cancel
            self._event(orjson.loads(line[len(DATA) :]), history)

    def _event(self, event: dict[str, Any], history: History) -> None:
        if event.get("error"):
            history.end(clock(), str(event["error"].get("code")), "UNAVAILABLE")
        elif self._kind == "responses":
            _responses_event(event, history)
        else:
            _chat_event(event, history)


def _responses_event(event: dict[str, Any], history: History) -> None:
    if event["type"] == "response.output_text.delta":
        history.arrivals.append(clock())
    elif event["type"] in ("response.completed", "response.incomplete"):
        history.tokens = event["response"]["usage"]["output_tokens"]
        history.end(clock(), OK)


def _chat_event(event: dict[str, Any], history: History) -> None:
    if event["choices"] and event["choices"][0]["delta"].get("content"):
        history.arrivals.append(clock())
    if event.get("usage"):
        history.tokens = event["usage"]["completion_tokens"]
        history.end(clock(), OK)


def _refused(history: History, response: httpx.Response, body: dict[str, Any]) -> None:
    wait = response.headers.get("retry-after-ms")
    reason = str(body.get("error", {}).get("code") or response.status_code).upper()
    code = CODES.get(response.status_code, f"HTTP_{response.status_code}")
    history.end(clock(), reason, code, float(wait) / 1000 if wait else None)
