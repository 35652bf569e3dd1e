"""The edge's control tower: performs what flights ask for, and brings them the news."""

import asyncio
import math
from contextlib import suppress
from typing import Any

import structlog

from penstock.chassis.errors import Aborted, PenstockError
from penstock.edge.catalog import Catalog
from penstock.edge.clock import Clock
from penstock.edge.config import EdgeConfig
from penstock.edge.door import EDGE, QUEUE, Door
from penstock.edge.flight.effects import (
    Accept,
    Cancelled,
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
from penstock.edge.flights import Flights
from penstock.edge.links.auth import AuthLink
from penstock.edge.links.queues import QueueLinks
from penstock.edge.links.workers import WorkerLinks
from penstock.edge.passage import Passage
from penstock.v1.inference_pb2 import Accepted, Finished, Usage
from penstock.v1.stream_pb2 import Hello

log = structlog.get_logger()

LANDING = 3.0  # s, after the last client has gone: for the receipts of cancels and the last settlements


class Tower:
    """All flights of this process and the links they use. Everything here happens between awaits."""

    def __init__(self, config: EdgeConfig, hello: Hello, catalog: Catalog, clock: Clock) -> None:
        self._clock = clock
        self._client_buffer = config.client_buffer
        self.flights = Flights(max_flights=config.max_flights, max_bytes=config.max_bytes)
        self.auth = AuthLink(config.auths, hello, self.flights, self, config.grace_limits)
        self.door = Door(self.auth.met, catalog, default_output_tokens=config.default_output_tokens)
        self.queues = QueueLinks(config.queues, hello, self.flights, self, catalog=catalog, door=self.door)
        self.workers = WorkerLinks(hello, self, idle=config.worker_idle)
        self.cancels = 0
        self.receipts = 0
        self.has_joined = asyncio.Event()  # auth and a queue were there at least once
        self._has_landed = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for link in (self.auth, self.queues, self.workers):
                group.create_task(link.run())

    def now(self) -> float:
        return self._clock.now()

    def link_up(self) -> None:
        if self.auth.is_up and self.queues.links_up:
            self.has_joined.set()

    async def landed(self) -> None:
        """Wait until nothing is under way and auth has confirmed every settlement, or it takes too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LANDING):
                while self.flights:
                    self._has_landed.clear()
                    await self._has_landed.wait()
                await self.auth.all_settled()

    def open(self, passage: Passage) -> None:
        """Take a flight in (`flights.check_room` says whether there is room)."""
        self.flights.add(passage)
        self._arm(passage)

    def leave(self, passage: Passage) -> None:
        """The client is gone. Nothing happens to a flight that is over."""
        if not passage.flight.is_done:
            self.apply(passage, passage.flight.client_left(self.now()))

    def fail(self, passage: Passage, error: PenstockError) -> None:
        self.apply(passage, passage.flight.fail(error, self.now()))

    def apply(self, passage: Passage, effects: list[Effect]) -> None:
        """Perform effects in order; those of a flight that ended are its last."""
        for effect in effects:
            if isinstance(effect, Emit):
                self._emit(passage, effect)
            else:
                self._perform(passage, effect)
        flight = passage.flight
        if flight.wake_at != passage.timer_at:
            self._arm(passage)
        if flight.is_done:
            self._close(passage)

    def _emit(self, passage: Passage, piece: Emit) -> None:
        passage.outlet.emit(piece)
        if passage.outlet.unread > self._client_buffer:
            text = f"the client is more than {self._client_buffer} bytes behind; resume with the tokens it has"
            self.apply(passage, passage.flight.fail(Aborted(text, reason="CLIENT_TOO_SLOW"), self.now()))

    def _perform(self, passage: Passage, effect: Effect) -> None:
        flight = passage.flight
        match effect:
            case Reserve():
                self.auth.reserve(passage)
            case Enqueue():
                self._enqueue(passage)
            case Withdraw():
                self._forget_run(passage)
                self.queues.withdraw(passage)
            case StartRun(lease):
                self.workers.start(passage, lease)
            case CancelRun():
                if passage.run:
                    passage.run.cancel()
            case Settle():
                self.auth.settle(passage.ticket_id, flight.reservation_id, effect)
            case Accept():
                passage.outlet.accepted(_accepted(passage))
            case Finish():
                passage.outlet.finished(_finished(passage, effect))
            case Fail(error):
                passage.record.failed(error)
                passage.outlet.failed(error)
            case Cancelled():
                self._cancelled(passage, effect)

    def _enqueue(self, passage: Passage) -> None:
        self._forget_run(passage)
        if not self.queues.enqueue(passage):
            self.apply(passage, passage.flight.stranded(self.now()))

    def _cancelled(self, passage: Passage, receipt: Cancelled) -> None:
        self.cancels += 1
        self.receipts += receipt.has_receipt
        passage.record.cancelled(receipt)
        passage.outlet.cancelled(receipt)

    def _forget_run(self, passage: Passage) -> None:
        if passage.run:
            passage.run.forget()
            passage.run = None

    def _arm(self, passage: Passage) -> None:
        """Have `tick` called when the flight wants it."""
        if passage.timer:
            passage.timer.cancel()
            passage.timer = None
        passage.timer_at = passage.flight.wake_at
        if not math.isinf(passage.timer_at):
            delay = max(0.0, passage.timer_at - self.now())
            passage.timer = asyncio.get_running_loop().call_later(delay, self._tick, passage)

    def _tick(self, passage: Passage) -> None:
        passage.timer = None
        self.apply(passage, passage.flight.tick(self.now()))
        if passage.timer is None and not passage.flight.is_done:
            self._arm(passage)  # the loop's timer was a moment early

    def _close(self, passage: Passage) -> None:
        if self.flights.get(passage.ticket_id) is None:
            return
        self._forget_run(passage)
        now = self.now()
        if not passage.flight.identity.key_id and (known := self.auth.met(passage.credential, passage.spec.priority)):
            passage.flight.identity = known  # for its record: it ended before auth was asked
        self.flights.remove(passage, now)
        passage.record.end(passage.flight, now)
        if not self.flights:
            self._has_landed.set()

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Rows for snapshots."""
        return {"sheds": self.door.sheds}

    def figures(self) -> dict[str, float]:
        """Numbers for snapshots."""
        states = {f"flights_{state}": float(count) for state, count in self.flights.counts().items()}
        return {
            **states,
            "flights": len(self.flights),
            "flights_opened": self.flights.opened,
            "held_bytes": self.flights.bytes,
            "unread_bytes": sum(passage.outlet.unread for passage in self.flights),
            "reservations_open": self.auth.unsettled
            + sum(bool(passage.flight.reservation_id) for passage in self.flights),
            "auth_links_up": self.auth.links_up,
            **self.auth.grace_figures,
            "queue_links_up": self.queues.links_up,
            "worker_links_up": self.workers.links_up,
            "knocks": self.queues.knocks,
            "refused_here": self.door.refused(EDGE),
            "refused_by_queue": self.door.refused(QUEUE),
            "cancels": self.cancels,
            "receipts": self.receipts,
        }


def _accepted(passage: Passage) -> Accepted:
    flight = passage.flight
    return Accepted(
        request_id=passage.request_id,
        model=flight.plan.model,
        prompt_tokens=flight.prompt_tokens,
        max_output_tokens=flight.plan.max_output_tokens,
        seed=flight.plan.sampling.seed,
        answer_id=passage.answer_id,
    )


def _finished(passage: Passage, finish: Finish) -> Finished:
    flight = passage.flight
    usage = Usage(
        prompt_tokens=flight.prompt_tokens,
        output_tokens=flight.output_tokens,
        cached_prompt_tokens=flight.cached_prompt_tokens,
    )
    finished = Finished(reason=finish.reason, usage=usage, stop_string=finish.stop_string)
    if passage.spec.explain:
        timeline = flight.timeline.message(
            trace_id=passage.record.trace_id, worker_id=flight.worker_id, attempts=flight.attempt
        )
        finished.timeline.CopyFrom(timeline)
    return finished
