"""The edge's control tower: performs what flights ask for, and brings them the news."""

import asyncio
import math
from contextlib import suppress
from typing import Any

import structlog

from penstock.chassis.clocks import WallMonotonicClock
from penstock.chassis.errors import Aborted, PenstockError
from penstock.edge.admission.filter import EDGE_TIER, QUEUE_TIER, AdmissionFilter
from penstock.edge.config import EdgeConfig
from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.lifecycle.effects import (
    Accept,
    AcknowledgeCancel,
    CancelRun,
    Effect,
    Emit,
    Enqueue,
    Fail,
    Finish,
    Reserve,
    Settle,
    StartRun,
    Withdraw,
)
from penstock.edge.lifecycle.table import ActiveRequests
from penstock.edge.models.catalog import ModelCatalog
from penstock.edge.upstreams.auth import AuthClient
from penstock.edge.upstreams.queue import QueueClient
from penstock.edge.upstreams.worker import WorkerClient
from penstock.v1.inference_pb2 import Accepted, Finished, Usage
from penstock.v1.stream_pb2 import Hello

log = structlog.get_logger()

DRAIN_TIMEOUT_S = 3.0  # s, after the last client has gone: for the receipts of cancels and the last settlements


class RequestRunner:
    """All flights of this process and the links they use. Everything here happens between awaits."""

    def __init__(self, config: EdgeConfig, hello: Hello, catalog: ModelCatalog, clock: WallMonotonicClock) -> None:
        self._clock = clock
        self._response_buffer_bytes = config.response_buffer_bytes
        self.requests = ActiveRequests(
            max_active_requests=config.max_active_requests, max_held_bytes=config.max_held_bytes
        )
        self.auth = AuthClient(config.auths, hello, self.requests, self, config.auth_fallback_limits)
        self.admission = AdmissionFilter(
            self.auth.find_identity, catalog, default_output_tokens=config.default_output_tokens
        )
        self.queue = QueueClient(config.queues, hello, self.requests, self, catalog=catalog, admission=self.admission)
        self.workers = WorkerClient(hello, self, idle_timeout=config.worker_idle_timeout)
        self.cancels = 0
        self.cancels_acknowledged = 0
        self.has_connected = asyncio.Event()  # auth and a queue were there at least once
        self._is_empty = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for link in (self.auth, self.queue, self.workers):
                group.create_task(link.run())

    def now(self) -> float:
        return self._clock.now()

    def on_upstream_connected(self) -> None:
        if self.auth.is_up and self.queue.links_up:
            self.has_connected.set()

    async def wait_drained(self) -> None:
        """Wait until nothing is under way and auth has confirmed every settlement, or it takes too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while self.requests:
                    self._is_empty.clear()
                    await self._is_empty.wait()
                await self.auth.wait_settled()

    def add(self, passage: RequestContext) -> None:
        """Take a flight in (`flights.check_room` says whether there is room)."""
        self.requests.add(passage)
        self._schedule_tick(passage)

    def cancel(self, passage: RequestContext) -> None:
        """The client is gone. Nothing happens to a flight that is over."""
        if not passage.request.is_done:
            self.apply(passage, passage.request.on_client_cancelled(self.now()))

    def fail(self, passage: RequestContext, error: PenstockError) -> None:
        self.apply(passage, passage.request.fail(error, self.now()))

    def apply(self, passage: RequestContext, effects: list[Effect]) -> None:
        """Perform effects in order; those of a flight that ended are its last."""
        for effect in effects:
            if isinstance(effect, Emit):
                self._emit(passage, effect)
            else:
                self._perform(passage, effect)
        flight = passage.request
        if flight.next_tick_at != passage.timer_due_at:
            self._schedule_tick(passage)
        if flight.is_done:
            self._remove(passage)

    def _emit(self, passage: RequestContext, piece: Emit) -> None:
        passage.sink.send_delta(piece)
        if passage.sink.unread_bytes > self._response_buffer_bytes:
            text = f"the client is more than {self._response_buffer_bytes} bytes behind; resume with the tokens it has"
            self.apply(passage, passage.request.fail(Aborted(text, reason="CLIENT_TOO_SLOW"), self.now()))

    def _perform(self, passage: RequestContext, effect: Effect) -> None:
        flight = passage.request
        match effect:
            case Reserve():
                self.auth.reserve(passage)
            case Enqueue():
                self._enqueue(passage)
            case Withdraw():
                self._release_run(passage)
                self.queue.withdraw(passage)
            case StartRun(lease):
                self.workers.start(passage, lease)
            case CancelRun():
                if passage.run:
                    passage.run.cancel()
            case Settle():
                self.auth.settle(passage.ticket_id, flight.reservation_id, effect)
            case Accept():
                passage.sink.send_accepted(_accepted_message(passage))
            case Finish():
                passage.sink.send_finished(_finished_message(passage, effect))
            case Fail(error):
                passage.telemetry.on_failed(error)
                passage.sink.send_failed(error)
            case AcknowledgeCancel():
                self._acknowledge_cancel(passage, effect)

    def _enqueue(self, passage: RequestContext) -> None:
        self._release_run(passage)
        if not self.queue.enqueue(passage):
            self.apply(passage, passage.request.on_no_queue(self.now()))

    def _acknowledge_cancel(self, passage: RequestContext, receipt: AcknowledgeCancel) -> None:
        self.cancels += 1
        self.cancels_acknowledged += receipt.is_acknowledged
        passage.telemetry.on_cancelled(receipt)
        passage.sink.send_cancelled(receipt)

    def _release_run(self, passage: RequestContext) -> None:
        if passage.run:
            passage.run.discard()
            passage.run = None

    def _schedule_tick(self, passage: RequestContext) -> None:
        """Have `tick` called when the flight wants it."""
        if passage.timer:
            passage.timer.cancel()
            passage.timer = None
        passage.timer_due_at = passage.request.next_tick_at
        if not math.isinf(passage.timer_due_at):
            delay = max(0.0, passage.timer_due_at - self.now())
            passage.timer = asyncio.get_running_loop().call_later(delay, self._tick, passage)

    def _tick(self, passage: RequestContext) -> None:
        passage.timer = None
        self.apply(passage, passage.request.tick(self.now()))
        if passage.timer is None and not passage.request.is_done:
            self._schedule_tick(passage)  # the loop's timer was a moment early

    def _remove(self, passage: RequestContext) -> None:
        if self.requests.get(passage.ticket_id) is None:
            return
        self._release_run(passage)
        now = self.now()
        if not passage.request.identity.key_id and (
            known := self.auth.find_identity(passage.credential, passage.spec.priority)
        ):
            passage.request.identity = known  # for its telemetry: it ended before auth was asked
        self.requests.remove(passage, now)
        passage.telemetry.end(passage.request, now)
        if not self.requests:
            self._is_empty.set()

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Rows for snapshots."""
        return {"sheds": self.admission.sheds}

    def figures(self) -> dict[str, float]:
        """Numbers for snapshots."""
        states = {f"flights_{state}": float(count) for state, count in self.requests.count_by_state().items()}
        return {
            **states,
            "active_requests": len(self.requests),
            "requests_started": self.requests.started,
            "held_bytes": self.requests.held_bytes,
            "unread_bytes": sum(passage.sink.unread_bytes for passage in self.requests),
            "reservations_open": self.auth.unsettled
            + sum(bool(passage.request.reservation_id) for passage in self.requests),
            "auth_links_up": self.auth.links_up,
            **self.auth.fallback_figures,
            "queue_links_up": self.queue.links_up,
            "worker_links_up": self.workers.links_up,
            "pending_probes": self.queue.pending_probes,
            "rejected_by_edge": self.admission.rejected(EDGE_TIER),
            "rejected_by_queue": self.admission.rejected(QUEUE_TIER),
            "cancels": self.cancels,
            "cancels_acknowledged": self.cancels_acknowledged,
        }


def _accepted_message(passage: RequestContext) -> Accepted:
    flight = passage.request
    return Accepted(
        request_id=passage.request_id,
        model=flight.plan.model,
        prompt_tokens=flight.prompt_tokens,
        max_output_tokens=flight.plan.max_output_tokens,
        seed=flight.plan.sampling.seed,
        answer_id=passage.answer_id,
    )


def _finished_message(passage: RequestContext, finish: Finish) -> Finished:
    flight = passage.request
    usage = Usage(
        prompt_tokens=flight.prompt_tokens,
        output_tokens=flight.output_tokens,
        cached_prompt_tokens=flight.cached_prompt_tokens,
    )
    finished = Finished(reason=finish.reason, usage=usage, stop_string=finish.stop_string)
    if passage.spec.explain:
        timeline = flight.timeline.to_message(
            trace_id=passage.telemetry.trace_id, worker_id=flight.worker_id, attempts=flight.attempt
        )
        finished.timeline.CopyFrom(timeline)
    return finished
