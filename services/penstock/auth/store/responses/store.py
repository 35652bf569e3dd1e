"""The store of responses for the event loop: it never waits, and each call has a result in a bounded time."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from zlib import crc32

import structlog

from penstock.auth.responses.errors import ResponseStoreUnavailable
from penstock.auth.responses.messages import failed
from penstock.auth.store.responses.backend import ResponseTotals
from penstock.auth.store.responses.thread import Caller, CallThread, OnResult, PendingCall
from penstock.mesh.v1.responses_pb2 import StoreCall, StoreResult

log = structlog.get_logger()

CALL_TIMEOUT_S = 1.5  # s after which a call has failed, whatever the database does
TIMEOUT_INTERVAL_S = 0.25  # s between looks for calls that wait for too long
MAX_PENDING_CALLS = 8_192  # beyond it the database is too slow, and waiting calls would only fail later
MAX_PENDING_BYTES = 256 << 20  # the same for the bytes of calls
MAX_UNWRITTEN_BYTES = 16 << 20  # bytes of results that wait for one edge, from which it waits for further responses
UNWRITTEN_INTERVAL_S = 0.02  # s between looks whether an edge has read its results
RETURNING_RESPONSES = frozenset({"read", "chain", "claim", "cancel"})  # operations whose results may be large


class ResponseStore(Protocol):
    """Performs calls on stored responses."""

    @property
    def pending(self) -> int:
        """Calls without a result."""

    def perform(self, call: StoreCall, caller: Caller, on_result: OnResult) -> None:
        """Perform a call; `on_result` is called on the event loop, with a failure at the latest after 2 s.

        Calls of one edge that create, extend, finish and delete responses are performed in order.
        """

    async def delete_of_tenant(self, tenant_id: str) -> None:
        """Delete all responses of a tenant. Raises ResponseStoreUnavailable."""

    @property
    def figures(self) -> Mapping[str, float]:
        """Figures of the admin snapshot."""


@dataclass(eq=False)
class ThreadedResponseStore:
    """Passes calls to threads, each with its own backend. Calls that change responses go to the thread of their edge.

    A call without a result after `CALL_TIMEOUT_S` is answered as unavailable. Its thread may still perform it: every
    call may be repeated. Memory is bounded: calls that return responses wait until their edge has read former results,
    and each thread has at most one of them.
    """

    threads: Sequence[CallThread]
    totals: ResponseTotals = field(default_factory=ResponseTotals)
    is_available: bool = True  # whether the latest call was performed
    failed_calls: int = 0  # as unavailable
    pending_bytes: int = 0
    _waiting: dict[PendingCall, float] = field(default_factory=dict)  # time at which each has failed, the first first
    _reads: deque[PendingCall] = field(default_factory=deque)  # calls that return responses, which no thread has
    _readers: dict[PendingCall, CallThread] = field(default_factory=dict)  # those that a thread has
    _is_retry_due: bool = False

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
            "response_store_available": self.is_available,
        }

    def perform(self, call: StoreCall, caller: Caller, on_result: OnResult) -> None:
        pending = PendingCall(call, caller, on_result, call.ByteSize())
        if self.pending >= MAX_PENDING_CALLS or self.pending_bytes + pending.size > MAX_PENDING_BYTES:
            self._fail(pending, f"{self.pending} calls wait for it")
            return
        self._waiting[pending] = asyncio.get_running_loop().time() + CALL_TIMEOUT_S
        self.pending_bytes += pending.size
        if call.WhichOneof("operation") in RETURNING_RESPONSES:
            self._reads.append(pending)
            self._pass_reads()
        else:
            self.threads[crc32(caller.instance_id.encode()) % len(self.threads)].put(pending)

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
            pending, fails_at = next(iter(self._waiting.items()))
            if now < fails_at:
                return
            self._remove(pending)
            pending.is_abandoned = True
            self._fail(pending, "it does not answer in time")

    def on_results(self, calls: Sequence[PendingCall], results: Sequence[StoreResult | None]) -> None:
        """Pass on the results of a thread. Those of calls that have failed meanwhile are dropped."""
        for pending, result in zip(calls, results, strict=True):
            self._readers.pop(pending, None)
            if self._remove(pending) and result:
                if result.failure.reason == ResponseStoreUnavailable.default_reason:
                    self._count_failure(result.failure.message)
                else:
                    self._set_available(because="")
                pending.on_result(result)
        self._pass_reads()

    def on_totals(self, totals: ResponseTotals) -> None:
        self.totals = totals

    def _pass_reads(self) -> None:
        """Pass calls that return responses to threads that have none. Those of an edge that does not read wait."""
        delayed: list[PendingCall] = []
        may_receive: dict[Caller, bool] = {}
        while self._reads and (free := [each for each in self.threads if each not in self._readers.values()]):
            pending = self._reads.popleft()
            if pending.is_abandoned:
                continue
            caller = pending.caller
            if caller not in may_receive:
                may_receive[caller] = caller.unwritten_bytes() <= MAX_UNWRITTEN_BYTES
            if not may_receive[caller]:
                delayed.append(pending)
                continue
            self._readers[pending] = thread = min(free, key=CallThread.queued)
            thread.put(pending)
        self._reads.extendleft(reversed(delayed))
        if delayed and not self._is_retry_due:
            self._is_retry_due = True
            asyncio.get_running_loop().call_later(UNWRITTEN_INTERVAL_S, self._retry_reads)

    def _retry_reads(self) -> None:
        self._is_retry_due = False
        self._pass_reads()

    def _remove(self, pending: PendingCall) -> bool:
        """Return whether a call had no result until now."""
        if self._waiting.pop(pending, None) is None:
            return False
        self.pending_bytes -= pending.size
        return True

    def _fail(self, pending: PendingCall, because: str) -> None:
        error = ResponseStoreUnavailable(because)
        self._count_failure(error.message)
        pending.on_result(failed(pending.call.call_id, error))

    def _count_failure(self, because: str) -> None:
        self.failed_calls += 1
        self._set_available(because=because)

    def _set_available(self, *, because: str) -> None:
        """Note whether the latest call was performed, and log a change. `because`: empty if it was."""
        if self.is_available == (not because):
            return
        self.is_available = not because
        if because:
            log.error("response_store_unavailable", error=because, pending=self.pending)
        else:
            log.info("response_store_available", pending=self.pending)
