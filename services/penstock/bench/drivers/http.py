"""The driver of the OpenAI-compatible APIs, streamed as server-sent events."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import orjson

from penstock.bench.load import BenchRequest
from penstock.bench.transcript import CANCELLED, OK, Transcript

DATA_PREFIX = "data: "
STREAM_END_LINE = "data: [DONE]"
REJECTION_CODES = {
    429: "RESOURCE_EXHAUSTED",
    503: "RESOURCE_EXHAUSTED",
    504: "DEADLINE_EXCEEDED",
}  # others are failures
OVERLOADED = "OVERLOADED"


class HttpDriver:
    """Sends requests to `base_urls` in rotation by the API `responses`, `chat` or `completions`.

    Server-sent events have no token indexes: each event is one arrival, and tokens are counted from the usage. The
    completions API streams no usage here, so that each of its events counts as one token.
    """

    def __init__(self, http: httpx.AsyncClient, base_urls: Iterator[str], api: str, clock: Callable[[], float]) -> None:
        self._http = http
        self._base_urls = base_urls
        self._api = api
        self._clock = clock

    async def send(self, request: BenchRequest, transcript: Transcript) -> None:
        path, body = self._path_and_body(request)
        headers = {"x-request-id": request.options["request_id"]} if "request_id" in request.options else {}
        try:
            async with self._http.stream(
                "POST", f"{next(self._base_urls)}{path}", json=body, headers=headers
            ) as response:
                if response.status_code == httpx.codes.OK:
                    await self._read_events(response, request, transcript)
                else:
                    self._record_rejection(transcript, response, orjson.loads(await response.aread()))
        except httpx.HTTPError as error:
            transcript.end(self._clock(), type(error).__name__, "UNAVAILABLE")
        if not transcript.outcome:
            transcript.end(self._clock(), "STREAM_CUT", "UNAVAILABLE")

    def _path_and_body(self, request: BenchRequest) -> tuple[str, dict[str, Any]]:
        limit, prompt = request.options["max_output_tokens"], request.prompt
        body = {"model": request.options.get("model", ""), "stream": True, "temperature": 0, "ignore_eos": True}
        match self._api:
            case "responses":
                return "/responses", {**body, "input": prompt, "max_output_tokens": limit}
            case "chat":
                messages = [{"role": "user", "content": prompt}]
                usage = {"stream_options": {"include_usage": True}}
                return "/chat/completions", {**body, **usage, "max_completion_tokens": limit, "messages": messages}
            case _:
                return "/completions", {**body, "prompt": prompt, "max_tokens": limit}

    async def _read_events(self, response: httpx.Response, request: BenchRequest, transcript: Transcript) -> None:
        transcript.is_accepted = True
        async for line in response.aiter_lines():
            if line == STREAM_END_LINE and self._api == "completions" and not transcript.outcome:
                transcript.end(self._clock(), OK)
            elif line.startswith(DATA_PREFIX) and line != STREAM_END_LINE:
                if request.cancel_after is not None and len(transcript.arrivals) > request.cancel_after:
                    transcript.end(self._clock(), CANCELLED)
                    return  # leaving the stream's block closes the connection, which cancels the request
                self._on_event(orjson.loads(line.removeprefix(DATA_PREFIX)), transcript)

    def _on_event(self, event: dict[str, Any], transcript: Transcript) -> None:
        if error := event.get("error"):
            reason = str(error.get("code")).upper()
            transcript.end(self._clock(), reason, "RESOURCE_EXHAUSTED" if reason == OVERLOADED else "UNAVAILABLE")
        elif self._api == "responses":
            self._on_responses_event(event, transcript)
        elif self._api == "chat":
            self._on_chat_event(event, transcript)
        else:
            transcript.record(self._clock(), transcript.next_index, 1)

    def _on_responses_event(self, event: dict[str, Any], transcript: Transcript) -> None:
        if event["type"] == "response.output_text.delta":
            transcript.arrivals.append(self._clock())
        elif event["type"] in ("response.completed", "response.incomplete"):
            transcript.tokens = event["response"]["usage"]["output_tokens"]
            transcript.end(self._clock(), OK)

    def _on_chat_event(self, event: dict[str, Any], transcript: Transcript) -> None:
        if event["choices"] and event["choices"][0]["delta"].get("content"):
            transcript.arrivals.append(self._clock())
        if event.get("usage"):
            transcript.tokens = event["usage"]["completion_tokens"]
            transcript.end(self._clock(), OK)

    def _record_rejection(self, transcript: Transcript, response: httpx.Response, body: dict[str, Any]) -> None:
        wait_ms = response.headers.get("retry-after-ms")
        reason = str(body.get("error", {}).get("code") or response.status_code).upper()
        code = REJECTION_CODES.get(response.status_code, f"HTTP_{response.status_code}")
        transcript.end(self._clock(), reason, code, float(wait_ms) / 1000 if wait_ms else None)
