"""Clients of batches: they upload a file, create a batch, watch and cancel it, and read its files, over HTTP."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from penstock.faults.planned_batch import PlannedBatch
from penstock.faults.world.clients.http_client import CallFailed, Edges, Json
from penstock.faults.world.http_door import HttpRequest

FILES, BATCHES = "/v1/files", "/v1/batches"
NAME = "name"  # of a batch, in its metadata
BOUNDARY = "lines"
RETRYABLE = (429, 503)
RETRY_INTERVAL_S = 0.1  # s
WATCH_INTERVAL_S = 0.25  # s
WINDOW = "24h"  # longer than a world lasts
ENDS = ("completed", "failed", "expired", "cancelled")
CANCELLED = ("cancelling", "cancelled")
ENDED_ALREADY = "has ended; it cannot be cancelled"


@dataclass(slots=True, kw_only=True)
class BatchTranscript:
    """Everything that one client received for one planned batch."""

    planned: PlannedBatch
    file_id: str = ""
    batch_id: str = ""
    asked_at: float = 0.0  # s; when the client first asked for the batch
    created_at: float = 0.0  # s; when an edge acknowledged it
    losses: int = 0  # calls without an answer, and those that an edge could not serve
    cancelled_at: float | None = None  # s; when an edge acknowledged the cancel
    views: list[Json] = field(default_factory=list)  # the batch, as often as the client looked
    problems: list[str] = field(default_factory=list)
    has_ended: bool = False


@dataclass(slots=True, kw_only=True)
class FoundBatch:
    """A batch that a tenant has after all: the object, and the contents of its files at each edge."""

    tenant: int
    batch: Json
    outputs: list[bytes] = field(default_factory=list)
    errors: list[bytes] = field(default_factory=list)

    @property
    def batch_id(self) -> str:
        return str(self.batch["id"])

    @property
    def name(self) -> str:
        return str((self.batch["metadata"] or {}).get(NAME, ""))


class BatchClient:
    """One client."""

    def __init__(self, edges: Edges, key: str, transcript: BatchTranscript) -> None:
        self._edges = edges
        self._key = key
        self._transcript = transcript
        self._edge = transcript.planned.edge

    async def run(self) -> None:
        transcript, planned = self._transcript, self._transcript.planned
        await asyncio.sleep(planned.starts_at)
        try:
            transcript.file_id = (await self._call(self._upload()))["id"]
            transcript.asked_at = _now()
            transcript.batch_id = (await self._call(self._creation()))["id"]
            transcript.created_at = _now()
            async with asyncio.TaskGroup() as group:
                if planned.cancels_after_s is not None:
                    group.create_task(self._cancel(planned.cancels_after_s))
                group.create_task(self._watch())
        except* CallFailed as failed:
            transcript.problems += map(str, failed.exceptions)
        transcript.has_ended = True

    def _upload(self) -> HttpRequest:
        content = self._transcript.planned.content.decode()
        parts = ('name="purpose"\r\n\r\nbatch', f'name="file"; filename="lines.jsonl"\r\n\r\n{content}')
        body = "".join(f"--{BOUNDARY}\r\nContent-Disposition: form-data; {part}\r\n" for part in parts)
        return HttpRequest(
            "POST", FILES, self._key, "", f"{body}--{BOUNDARY}--\r\n", f"multipart/form-data; boundary={BOUNDARY}"
        )

    def _creation(self) -> HttpRequest:
        planned = self._transcript.planned
        body = {
            "input_file_id": self._transcript.file_id,
            "endpoint": planned.endpoint,
            # A minute of a window is a second in a world.
            "completion_window": WINDOW if planned.window_s is None else f"{planned.window_s}m",
            "metadata": {NAME: planned.name},
        }
        return HttpRequest("POST", BATCHES, self._key, body=orjson.dumps(body).decode(), idempotency_key=planned.name)

    async def _watch(self) -> None:
        request = HttpRequest("GET", f"{BATCHES}/{self._transcript.batch_id}", self._key)
        while True:
            view = await self._call(request)
            self._transcript.views.append(view)
            if view["status"] in ENDS:
                return
            self._edge += 1
            await asyncio.sleep(WATCH_INTERVAL_S)

    async def _cancel(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        try:
            view = await self._call(HttpRequest("POST", f"{BATCHES}/{self._transcript.batch_id}/cancel", self._key))
        except CallFailed as error:
            if ENDED_ALREADY not in str(error):
                raise
        else:
            if view["status"] in CANCELLED:
                self._transcript.cancelled_at = _now()

    async def _call(self, request: HttpRequest) -> Json:
        """Make a call, at one edge after the other until one has answered. Raises CallFailed."""

        def on_lost() -> None:
            self._transcript.losses += 1
            self._edge += 1

        body = await until_answered(lambda: self._edges.whole(self._edge, request), on_lost)
        answer: Json = orjson.loads(body)
        return answer


def _now() -> float:
    return asyncio.get_running_loop().time()


async def until_answered(call: Callable[[], Awaitable[bytes]], on_lost: Callable[[], None]) -> bytes:
    """Call until there is an answer. Raises CallFailed if that is an error which will not pass."""
    while True:
        try:
            return await call()
        except CallFailed as error:
            if error.status not in RETRYABLE:
                raise
        except (ConnectionError, TimeoutError):
            pass
        on_lost()
        await asyncio.sleep(RETRY_INTERVAL_S)


async def run_batch_clients(
    targets: Sequence[str], keys: Sequence[str], transcripts: Iterable[BatchTranscript]
) -> None:
    """Run one client for each batch; return when all have ended. `keys`: of the tenants."""
    edges = Edges(targets)
    async with asyncio.TaskGroup() as group:
        for each in transcripts:
            group.create_task(BatchClient(edges, keys[each.planned.tenant], each).run())
    await edges.close()


async def audit_batches(
    targets: Sequence[str], keys: Sequence[str], tenants: Iterable[int], found: list[FoundBatch]
) -> None:
    """Append all batches of the tenants to `found`, with the contents of their files at each edge."""
    edges = Edges(targets)

    async def read(edge: int, key: str, target: str) -> bytes:
        return await until_answered(lambda: edges.whole(edge, HttpRequest("GET", target, key)), lambda: None)

    for tenant in tenants:
        key = keys[tenant]
        listed: dict[str, Any] = orjson.loads(await read(0, key, f"{BATCHES}?limit=100"))
        for batch in listed["data"]:
            each = FoundBatch(tenant=tenant, batch=batch)
            found.append(each)
            for edge in range(len(targets)):
                for file_id, contents in (
                    (batch["output_file_id"], each.outputs),
                    (batch["error_file_id"], each.errors),
                ):
                    contents.append(await read(edge, key, f"{FILES}/{file_id}/content") if file_id else b"")
    await edges.close()
