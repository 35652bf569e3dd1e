"""A plain client of the Responses API: it streams a response, and reads on at another edge when its stream breaks."""

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

RETRY_INTERVAL_S = 0.1
READ_TIMEOUT_S = 60.0
STREAM_TIMEOUT_S = 120.0  # of a whole response; keep-alives end no read
FINAL_EVENTS = ("response.completed", "response.incomplete", "response.failed", "error")
# Of an event: what differs between two responses to the same request.
_IDS = re.compile(rb"(resp|msg|rs|fc)_[0-9a-zA-Z-]+")
_VOLATILE = re.compile(rb'"(created_at|cached_tokens)":[0-9]+|"background":(true|false)')


@dataclass(slots=True)
class StreamedResponse:
    """One response as its client received it."""

    number: int  # of its request in the catalog
    response_id: str = ""
    events: list[bytes] = field(default_factory=list)  # without what differs between two responses
    sequence_numbers: list[int] = field(default_factory=list)
    last_event: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    text: str = ""
    breaks: int = 0  # of its stream
    failure: str = ""  # empty: it has ended well

    @property
    def is_over(self) -> bool:
        return self.last_event in FINAL_EVENTS

    @property
    def is_in_order(self) -> bool:
        return self.sequence_numbers == list(range(len(self.sequence_numbers)))

    def record(self, data: bytes) -> None:
        event = orjson.loads(data)
        self.events.append(_VOLATILE.sub(b"", _IDS.sub(b"ID", data)))
        self.sequence_numbers.append(event.get("sequence_number", -1))
        self.last_event = event.get("type", "error")
        response = event.get("response") or {}
        self.response_id = response.get("id") or self.response_id
        if self.last_event == "response.output_text.delta":
            self.text += event["delta"]
        if self.is_over:
            usage = response.get("usage") or {}
            self.input_tokens, self.output_tokens = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
            if self.last_event not in ("response.completed", "response.incomplete"):
                self.failure = str(response.get("error") or event)


async def stream_response(
    edges: list[str],
    api_key: str,
    body: dict[str, Any],
    response: StreamedResponse,
) -> None:
    """Stream a new response from the first edge; after a break, read on at the next one.

    A client whose stream breaks before its first event has no id, and fails, as does one that has no end in time.
    """
    try:
        async with asyncio.timeout(STREAM_TIMEOUT_S):
            await _stream_response(edges, api_key, body, response)
    except TimeoutError:
        response.failure = f"no end of {response.response_id} after {STREAM_TIMEOUT_S:g} s"


async def _stream_response(
    edges: list[str],
    api_key: str,
    body: dict[str, Any],
    response: StreamedResponse,
) -> None:
    headers = {"authorization": f"Bearer {api_key}"}
    timeout = httpx.Timeout(READ_TIMEOUT_S, connect=2.0)
    attempts = 0
    async with httpx.AsyncClient(headers=headers, timeout=timeout) as http:
        while not response.is_over:
            edge = edges[attempts % len(edges)]
            attempts += 1
            url = f"http://{edge}/v1/responses"
            try:
                if not response.response_id:
                    sent = http.stream("POST", url, json={**body, "stream": True})
                else:
                    after = response.sequence_numbers[-1]
                    query = {"stream": "true", "starting_after": str(after)}
                    sent = http.stream("GET", f"{url}/{response.response_id}", params=query)
                async with sent as answer:
                    await _read(answer, response)
            except httpx.TransportError as error:
                if not response.response_id:
                    response.failure = f"no event: {error!r}"
                    return
                response.breaks += 1
                await asyncio.sleep(RETRY_INTERVAL_S)
            if response.failure:
                return


async def _read(answer: httpx.Response, response: StreamedResponse) -> None:
    if answer.status_code != 200:
        text = (await answer.aread()).decode(errors="replace")
        if answer.status_code == 503:  # the mesh has just lost a process
            await asyncio.sleep(RETRY_INTERVAL_S)
            return
        response.failure = f"{answer.status_code} {text}"
        return
    data = b""
    async for part in answer.aiter_raw():
        data += part
        *events, data = data.split(b"\n\n")
        for event in events:
            _, found, payload = event.partition(b"data: ")
            if found:
                response.record(payload)
