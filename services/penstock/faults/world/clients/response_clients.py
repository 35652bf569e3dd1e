"""Clients of stored responses: they read on at another edge, cancel, delete and continue, as any HTTP client may."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import orjson

from penstock.faults.checks import oracle
from penstock.faults.plan import PlannedResponse, ResponseAction
from penstock.faults.world.clients.http_client import CallFailed, Edges, Json
from penstock.faults.world.http_door import HttpRequest

ROUTE = "/v1/responses"
RETRY_INTERVAL_S = 0.1  # s
NOT_FOUND, CONFLICT = 404, 409
RETRYABLE = (429, 503)
IN_PROGRESS = "response_in_progress"  # the store, which was away, has not recorded the end of the previous one yet
ENDS = ("completed", "incomplete", "cancelled", "failed")
DELETED = "deleted"
MOVED = "retrieve it by its id"  # in the error of a stream whose response another edge continues
GONE = "does not exist"  # in the error of a stream whose response was deleted


@dataclass(slots=True, kw_only=True)
class ResponseTranscript:
    """Everything that one client received for one planned response."""

    planned: PlannedResponse
    response_id: str
    was_sent: bool = False
    is_created: bool = False  # an edge has acknowledged it
    rejections: int = 0  # calls of its creation that failed
    losses: int = 0  # connections that were lost
    was_left: bool = False  # the connection on which it was created was lost, or the client left
    asks_for_end: bool = False  # a cancel or a delete may have reached an edge
    is_acknowledged: bool = False  # the cancel or the delete
    is_cancel_late: bool = False  # the response was still in progress when the cancel was answered
    numbers: list[int] = field(default_factory=list)  # of the events received
    text: str = ""  # of the deltas received
    status: str = ""  # of the response at its end, as the client received it
    error: str = ""
    answer: Json | None = None  # the object at its end
    problems: list[str] = field(default_factory=list)
    has_ended: bool = False
    audits: list[Json] = field(default_factory=list)  # the object, or the error, at each edge after all

    @property
    def last_number(self) -> int:
        return self.numbers[-1] if self.numbers else -1


def transcripts_of(responses: Sequence[PlannedResponse]) -> list[list[ResponseTranscript]]:
    """Return a transcript of each turn of each chain."""
    return [
        [
            ResponseTranscript(planned=turn, response_id=f"resp_chain{number}turn{place}")
            for place, turn in enumerate(each.turns)
        ]
        for number, each in enumerate(responses)
    ]


async def run_response_clients(
    targets: Sequence[str], keys: Sequence[str], chains: Sequence[Sequence[ResponseTranscript]]
) -> None:
    """Run one client for each chain; return when all have ended. `keys`: of the tenants."""
    edges = Edges(targets)
    async with asyncio.TaskGroup() as group:
        for chain in chains:
            group.create_task(_run_chain(edges, keys, chain))
    await edges.close()


async def audit_responses(
    targets: Sequence[str], keys: Sequence[str], transcripts: Sequence[ResponseTranscript]
) -> None:
    """Retrieve each response at each edge, once it has ended."""
    edges = Edges(targets)
    for transcript in transcripts:
        key = keys[transcript.planned.request.tenant]
        for number in range(len(targets)):
            transcript.audits.append(await _audit(edges, number, key, transcript.response_id))
    await edges.close()


async def _audit(edges: Edges, number: int, key: str, response_id: str) -> Json:
    target = f"{ROUTE}/{response_id}"
    while True:
        try:
            async with aclosing(edges.stream(number, HttpRequest("GET", f"{target}?stream=true", key))) as events:
                async for _ in events:
                    pass
            found: Json = orjson.loads(await edges.whole(number, HttpRequest("GET", target, key)))
        except CallFailed as error:
            if error.status not in RETRYABLE:
                return {"error": str(error), "code": error.status}
        except (ConnectionError, TimeoutError):
            pass
        else:
            if found["status"] in ENDS:
                return found
        await asyncio.sleep(RETRY_INTERVAL_S)


async def _run_chain(edges: Edges, keys: Sequence[str], chain: Sequence[ResponseTranscript]) -> None:
    previous = ""
    for transcript in chain:
        client = ResponseClient(edges, keys[transcript.planned.request.tenant], transcript, previous)
        await client.run()
        if transcript.status not in ("completed", "incomplete"):
            break
        previous = transcript.response_id
    for transcript in chain:
        transcript.has_ended = True


class ResponseClient:
    """One client: creates a response, reads it to its end, and cancels or deletes it as planned."""

    def __init__(self, edges: Edges, key: str, transcript: ResponseTranscript, previous_id: str) -> None:
        self._edges = edges
        self._key = key
        self._transcript = transcript
        self._previous_id = previous_id
        self._edge = transcript.planned.edge
        self._target = f"{ROUTE}/{transcript.response_id}"

    async def run(self) -> None:
        planned = self._transcript.planned
        await asyncio.sleep(planned.request.starts_at)
        self._transcript.was_sent = True
        async with asyncio.TaskGroup() as group:
            if planned.action is not ResponseAction.NONE:
                group.create_task(self._act())
            while not self._transcript.status:
                if not self._transcript.is_created:
                    await self._attempt(self._create)
                else:
                    await self._attempt(self._read_on)

    async def _attempt(self, call: Any) -> None:
        """Make one call at the next edge."""
        transcript = self._transcript
        try:
            await call()
        except CallFailed as error:
            if error.status == CONFLICT:  # an earlier call, whose answer was lost, has created it
                transcript.is_created = True
            elif error.status == NOT_FOUND and transcript.is_created:
                self._on_missing(str(error))
            elif error.status in RETRYABLE or IN_PROGRESS in str(error):
                transcript.rejections += not transcript.is_created
            else:
                transcript.problems.append(str(error))
                transcript.status = "refused"
        except (ConnectionError, TimeoutError):
            transcript.losses += 1
            transcript.was_left = transcript.was_left or not transcript.planned.is_background
        else:
            return
        self._edge += 1
        await asyncio.sleep(RETRY_INTERVAL_S)

    def _on_missing(self, text: str) -> None:
        transcript = self._transcript
        if transcript.planned.action is ResponseAction.DELETE and transcript.asks_for_end:
            transcript.status = DELETED
        elif transcript.rejections:
            transcript.is_created = False  # an edge has deleted what a failed call had stored
        else:
            transcript.problems.append(f"it was acknowledged, and is unknown: {text}")
            transcript.status = "unknown"

    async def _create(self) -> None:
        transcript, planned = self._transcript, self._transcript.planned
        body = {
            "model": oracle.MODEL_NAME,
            "input": planned.input,
            "max_output_tokens": planned.request.max_output_tokens,
            "seed": planned.request.seed,
            "ignore_eos": planned.request.ignore_eos,
            "background": planned.is_background,
            "stream": planned.is_streamed,
            "store": True,
            **({"previous_response_id": self._previous_id} if self._previous_id else {}),
        }
        request_id = transcript.response_id.removeprefix("resp_")
        request = HttpRequest("POST", ROUTE, self._key, request_id, orjson.dumps(body).decode())
        if planned.is_streamed:
            await self._read(self._edges.stream(self._edge, request), planned.leaves_after_events)
            return
        answer = orjson.loads(await self._edges.whole(self._edge, request))
        transcript.is_created = True
        if planned.is_background:
            if answer["status"] != "queued":
                transcript.problems.append(f"a response in the background was answered as {answer['status']}")
            self._edge += 1
        else:
            self._on_end(answer)

    async def _read_on(self) -> None:
        """Read the events after those that were received."""
        target = f"{self._target}?stream=true"
        if self._transcript.numbers:
            target += f"&starting_after={self._transcript.last_number}"
        await self._read(self._edges.stream(self._edge, HttpRequest("GET", target, self._key)))

    async def _read(self, events: AsyncGenerator[Json, None], leaves_after: int | None = None) -> None:
        """Read a stream to its end, or until `leaves_after` events."""
        transcript = self._transcript
        async with aclosing(events) as received:
            async for event in received:
                transcript.is_created = True
                answer = event.get("response", {})
                error = (answer.get("error") or {}).get("message", "")
                if MOVED in error:
                    raise ConnectionError(error)
                if GONE in error and transcript.asks_for_end:
                    transcript.status = DELETED
                    return
                if answer.get("status") in ENDS:
                    self._on_end(answer)
                    return
                transcript.numbers.append(event["sequence_number"])
                transcript.text += event.get("delta", "")
                if leaves_after is not None and len(transcript.numbers) >= leaves_after:
                    self._edge += 1
                    return
        raise ConnectionError("the stream ended without the end of its response")

    def _on_end(self, answer: Json) -> None:
        transcript = self._transcript
        transcript.answer, transcript.status = answer, answer["status"]
        transcript.error = (answer["error"] or {}).get("message", "")

    async def _act(self) -> None:
        """Cancel or delete the response, at the next edge, until an edge has acknowledged that."""
        transcript, planned = self._transcript, self._transcript.planned
        await asyncio.sleep(planned.acts_after_s)
        edge = planned.edge + 1
        method, target = ("DELETE", self._target)
        if planned.action is ResponseAction.CANCEL:
            method, target = "POST", f"{self._target}/cancel"
        while True:
            while not transcript.is_created and not transcript.status:  # noqa: ASYNC110  # of the task that creates it
                await asyncio.sleep(RETRY_INTERVAL_S)
            if not transcript.is_created:
                return
            was_asked, transcript.asks_for_end = transcript.asks_for_end, True
            try:
                body = await self._edges.whole(edge, HttpRequest(method, target, self._key))
            except CallFailed as error:
                if error.status == NOT_FOUND and method == "DELETE" and was_asked:
                    break
                if error.status not in (*RETRYABLE, NOT_FOUND):
                    transcript.problems.append(f"{planned.action}: {error}")
                    return
            except (ConnectionError, TimeoutError):
                pass
            else:
                transcript.is_cancel_late = orjson.loads(body).get("status") == "in_progress"
                break
            edge += 1
            await asyncio.sleep(RETRY_INTERVAL_S)
        transcript.is_acknowledged = True
