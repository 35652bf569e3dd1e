"""The store of responses for the event loop: it never waits, and each call has a result in a bounded time."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from zlib import crc32

from penstock.auth.responses.errors import ResponseStoreUnavailable
from penstock.auth.responses.messages import failed
from penstock.auth.store.responses.backend import ResponseTotals
from penstock.auth.store.responses.thread import CallThread, PendingCall
from penstock.auth.telemetry import record_response_call_failures, record_responses
from penstock.mesh.v1.responses_pb2 import StoreCall, StoreResult

CALL_TIMEOUT_S = 1.5  # s after which a call has failed, whatever the database does
TIMEOUT_INTERVAL_S = 0.25  # s between looks for calls that wait for too long
MAX_PENDING_CALLS = 8_192  # beyond it the database is too slow, and waiting calls would only fail later

OnResult = Callable[[StoreResult], None]


class ResponseStore(Protocol):
    """Performs calls on stored responses."""

    @property
    def pending(self) -> int:
        """Calls without a result."""

    def perform(self, call: StoreCall, origin: str, on_result: OnResult) -> None:
        """Perform a call; `on_result` is called on the event loop, with a failure at the latest after 2 s.

        Calls of one origin that change responses are performed in order.
        """

    async def delete_of_tenant(self, tenant_id: str) -> None:
        """Delete all responses of a tenant. Raises ResponseStoreUnavailable."""

    @property
    def figures(self) -> Mapping[str, float]:
        """Figures of the admin snapshot."""


@dataclass(eq=False)
class ThreadedResponseStore:
    """Passes calls to threads, each with its own backend. Calls that change responses go to the thread of their origin.

    A call without a result after `CALL_TIMEOUT_S` is answered as unavailable. Its thread may still perform it: every
    call may be repeated.
    """

    threads: Sequence[CallThread]
    totals: ResponseTotals = field(default_factory=ResponseTotals)
    failed_calls: int = 0  # as unavailable
    _waiting: dict[PendingCall, float] = field(default_factory=dict)  # time at which each has failed, the first first

    @property
    def pending(self) -> int:
        return len(self._waiting)

    @property
    def figures(self) -> dict[str, float]:
        return {
            "stored_responses": self.totals.responses,
            "stored_response_bytes": self.totals.size,
            "response_calls_pending": self.pending,
            "response_calls_failed": self.failed_calls,
        }

    def perform(self, call: StoreCall, origin: str, on_result: OnResult) -> None:
        if self.pending >= MAX_PENDING_CALLS:
            self._fail(call.call_id, on_result, f"{self.pending} calls wait for it")
            return
        pending = PendingCall(call, on_result)
        self._waiting[pending] = asyncio.get_running_loop().time() + CALL_TIMEOUT_S
        self._thread_for(call, origin).put(pending)

    def _thread_for(self, call: StoreCall, origin: str) -> CallThread:
        if call.WhichOneof("operation") in ("read", "chain"):
            return min(self.threads, key=CallThread.queued)
        return self.threads[crc32(origin.encode()) % len(self.threads)]

    async def delete_of_tenant(self, tenant_id: str) -> None:
        while await self.threads[0].run(lambda backend: backend.delete_of_tenant(tenant_id)):
            pass  # calls of edges are performed between the slices

    async def watch(self) -> None:
        """Fail calls that have waited for too long, until cancelled."""
        while True:
            await asyncio.sleep(TIMEOUT_INTERVAL_S)
            self.expire(asyncio.get_running_loop().time())

    def expire(self, now: float) -> None:
        """Fail the calls whose time has passed."""
        while self._waiting:
            pending = next(iter(self._waiting))
            if now < self._waiting[pending]:
                return
            del self._waiting[pending]
            pending.is_abandoned = True
            self._fail(pending.call.call_id, pending.on_result, "it does not answer in time")

    def on_results(self, calls: Sequence[PendingCall], results: Sequence[StoreResult]) -> None:
        """Pass on the results of a thread. Those of calls that have failed meanwhile are dropped."""
        for pending, result in zip(calls, results, strict=True):
            if self._waiting.pop(pending, None) is None:
                continue
            if result.failure.reason == ResponseStoreUnavailable.default_reason:
                self._count_failure()
            pending.on_result(result)

    def on_totals(self, totals: ResponseTotals) -> None:
        self.totals = totals
        record_responses(totals.responses, totals.size)

    def _fail(self, call_id: int, on_result: OnResult, because: str) -> None:
        self._count_failure()
        on_result(failed(call_id, ResponseStoreUnavailable(because)))

    def _count_failure(self) -> None:
        self.failed_calls += 1
        record_response_call_failures(1)
