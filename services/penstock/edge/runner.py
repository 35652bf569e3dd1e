"""Request runner: performs the effects of active requests and delivers events to them."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import structlog

from penstock.chassis.clocks import WallMonotonicClock
from penstock.chassis.errors import Aborted, Overloaded, PenstockError, error_from_failure, failure_from
from penstock.chassis.security.channels import PLAINTEXT, Dialer
from penstock.edge.admission.filter import EDGE_TIER, QUEUE_TIER, AdmissionFilter
from penstock.edge.answer_messages import accepted_message, finished_message
from penstock.edge.config import EdgeConfig
from penstock.edge.explain.history import RequestHistory
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
    Offer,
    PlanAgain,
    Reserve,
    Settle,
    StartRun,
    Withdraw,
)
from penstock.edge.lifecycle.output import GenerationPlan
from penstock.edge.lifecycle.table import ActiveRequests
from penstock.edge.lifecycle.transitions import model_replaced
from penstock.edge.model_wait import ModelWait
from penstock.edge.models.catalog import ModelCatalog
from penstock.edge.models.planner import RequestPlanner
from penstock.edge.models.router import ModelRouter
from penstock.edge.regions.client import RegionClient
from penstock.edge.upstreams.auth import AuthClient
from penstock.edge.upstreams.queue import QueueClient
from penstock.edge.upstreams.worker import WorkerClient
from penstock.v1.stream_pb2 import Hello

log = structlog.get_logger()

Result = TypeVar("Result")

RESUME = "resume with the tokens it has"
DRAIN_TIMEOUT_S = 3.0  # after the last client is gone, for outstanding cancels
# After that, for auth to confirm settlements; longer than a restart of auth and than a disk that is full for 5 s.
SETTLEMENT_TIMEOUT_S = 8.0


class RequestRunner:
    """Owns the active requests of this process and the clients of all upstreams. State changes only between awaits."""

    def __init__(
        self,
        config: EdgeConfig,
        hello: Hello,
        catalog: ModelCatalog,
        planner: RequestPlanner,
        clock: WallMonotonicClock,
        *,
        dialer: Dialer = PLAINTEXT,
    ) -> None:
        self._clock = clock
        self._planner = planner
        self.history = RequestHistory()
        self._response_buffer_bytes = config.response_buffer_bytes
        self.requests = ActiveRequests(
            max_active_requests=config.max_active_requests, max_held_bytes=config.max_held_bytes
        )
        self._memory = self.requests.memory
        self._memory.on_exhausted = self._on_memory_exhausted
        self.auth = AuthClient(
            config.auths,
            hello,
            self.requests,
            self,
            config.auth_fallback_limits,
            region=config.region,
            dialer=dialer,
        )
        self.router = ModelRouter(self.auth.routes, catalog)
        self.on_routed: Callable[[RequestContext], None] = lambda _: None  # a request of a route was accepted
        self.regions = RegionClient(config.region_doors, hello, self, stay=config.staying_priorities, dialer=dialer)
        self.admission = AdmissionFilter(
            self.auth.find_identity,
            catalog,
            default_output_tokens=config.default_output_tokens,
            can_spill=self.regions.can_spill if config.regions else None,
        )
        self.queue = QueueClient(
            config.queues,
            hello,
            self.requests,
            self,
            catalog=catalog,
            router=self.router,
            admission=self.admission,
            dialer=dialer,
        )
        self.workers = WorkerClient(hello, self, idle_timeout=config.worker_idle_timeout, dialer=dialer)
        self.model_wait = ModelWait(catalog, self.router, report=self.queue.report_held, now=self.now)
        self.cancels = 0
        self.cancels_acknowledged = 0
        self.has_connected = asyncio.Event()  # set once auth and a queue shard have both been connected
        self._is_empty = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as self._group:
            for upstream in (self.auth, self.queue, self.workers, self.model_wait, self.regions):
                self._group.create_task(upstream.run())

    def now(self) -> float:
        return self._clock.now()

    def on_upstream_connected(self) -> None:
        if self.auth.is_up and self.queue.links_up:
            self.has_connected.set()

    async def wait_drained(self) -> None:
        """Wait until no request is active and auth has confirmed every settlement, each for a bounded time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while self.requests:
                    self._is_empty.clear()
                    await self._is_empty.wait()
        try:
            async with asyncio.timeout(SETTLEMENT_TIMEOUT_S):
                await self.auth.wait_settled()
        except TimeoutError:
            log.error("settlements_unconfirmed", count=self.auth.unsettled)  # noqa: TRY400  # the count is sufficient

    def add(self, context: RequestContext) -> None:
        """Add a request. The caller has called `requests.check_room`."""
        self.requests.add(context)
        self._schedule_tick(context)

    def run_task(self, work: Coroutine[Any, Any, Result], name: str) -> asyncio.Task[Result]:
        """Run `work` beside the requests. It may outlive the request that it is for."""
        assert self._group, "work was started before the upstream clients ran"
        return self._group.create_task(work, name=name)

    def admits(self, context: RequestContext, plan: GenerationPlan) -> bool:
        """Return whether the queue may admit a planned request. If not, the request ends in the queue's rejection."""
        try:
            self.admission.check_planned(context, plan)
        except Overloaded as error:
            context.telemetry.set_rejected_by(EDGE_TIER)
            self.apply(context, context.request.on_shed(plan, error))
            return False
        return True

    def on_tokenized(self, context: RequestContext, plan: GenerationPlan) -> None:
        """Reserve tokens. The ticket of a new request is enqueued at once if auth admitted its caller recently."""
        request, spec = context.request, context.spec
        if not spec.is_continued and (admitted := self.auth.find_admitted(context.credential, spec.priority)):
            request.identity = admitted
        else:
            admitted = None
        self.apply(context, request.on_tokenized(plan, self.now(), enqueues_early=admitted is not None))

    def cancel(self, context: RequestContext) -> None:
        """Cancel a request for its client. No effect on a request that is done."""
        if not context.request.is_done:
            self.apply(context, context.request.on_client_cancelled(self.now()))

    def fail(self, context: RequestContext, error: PenstockError) -> None:
        self.apply(context, context.request.fail(error, self.now()))

    def apply(self, context: RequestContext, effects: list[Effect]) -> None:
        """Perform effects in order, then schedule the next tick or remove the request.

        A timer that is due before the next tick stays: it costs less to find the tick not due than to replace a timer.
        """
        for effect in effects:
            if isinstance(effect, Emit):
                self.emit(context, effect)
            else:
                self._perform(context, effect)
        request = context.request
        if request.is_done:
            self._remove(context)
        elif request.next_tick_at < context.timer_due_at:
            self._schedule_tick(context)

    def emit(self, context: RequestContext, delta: Emit) -> None:
        """Send output to the client of a request, which fails if the client is too far behind."""
        if context.sink.send_delta(delta) > self._response_buffer_bytes:
            text = f"the client is more than {self._response_buffer_bytes} bytes behind; {RESUME}"
            self.fail(context, Aborted(text, reason="CLIENT_TOO_SLOW"))

    def _on_memory_exhausted(self) -> None:
        # A reader reports this while an event is applied to its request, which must not be ended within that event.
        asyncio.get_running_loop().call_soon(self._end_slowest_readers)

    def _end_slowest_readers(self) -> None:
        """End the requests with the most unread output and drop that output, which frees its memory at once."""
        readers = set(self._memory.slowest_readers())
        if not readers:
            return
        text = f"the edge holds too much unread output, and this client is among those most behind; {RESUME}"
        error = Aborted(text, reason="CLIENT_TOO_SLOW")
        contexts = [context for context in self.requests if context.sink.buffer in readers]
        for reader in readers:
            reader.discard(error)
        for context in contexts:
            self.fail(context, error)
        self._memory.ended_readers += len(readers)
        log.warning("slow_readers_ended", readers=len(readers), unread_bytes=self._memory.unread_bytes)

    def _perform(self, context: RequestContext, effect: Effect) -> None:
        match effect:
            case Reserve():
                self.auth.reserve(context)
            case Enqueue():
                self._enqueue(context)
            case PlanAgain() if context.away_nanos:  # a guest has no text to tokenize
                self.fail(context, model_replaced())
            case PlanAgain():
                self.run_task(self._plan_again(context), f"plan {context.ticket_id}")
            case Withdraw():
                self._release_run(context)
                self.queue.withdraw(context)
            case StartRun(lease):
                self.workers.start(context, lease)
            case CancelRun():
                if context.run:
                    context.run.cancel()
            case Settle() if context.hold_settlement:
                on_recorded = partial(setattr, context.request, "reservation_id")
                self.auth.fallback.await_record(context.ticket_id, on_recorded)
                context.hold_settlement(effect, partial(self._settle, context))
            case Settle():
                self._settle(context, effect)
            case Accept():
                context.sink.send_accepted(accepted_message(context))
                if context.route and context.request.attempt == 1:
                    self.on_routed(context)
            case Finish():
                context.sink.send_finished(finished_message(context, effect))
            case Fail(error):
                context.telemetry.on_failed(error, self.now())
                context.sink.send_failed(error)
            case AcknowledgeCancel():
                self._acknowledge_cancel(context, effect)
            case Offer():
                self.regions.offer(context)

    def _settle(self, context: RequestContext, settlement: Settle) -> None:
        request = context.request
        self.auth.settle(
            context.ticket_id, request.reservation_id, settlement, request.identity.tenant_id, context.on_settled
        )

    def _enqueue(self, context: RequestContext) -> None:
        self._release_run(context)
        if self.router.is_replaced(context) and (effects := context.request.on_model_replaced()):
            self.apply(context, effects)
        elif not self.queue.enqueue(context):
            self.apply(context, context.request.on_no_queue(self.now()))

    async def _plan_again(self, context: RequestContext) -> None:
        former = context.request.plan
        context.spec = self.router.spec_of(context)
        try:
            await self.model_wait.wait(context)
            if context.request.is_done:
                return
            plan = await self._planner.plan_again(context.spec, context.size_bytes, former)
            self.requests.add_bytes(context, max(0, plan.prompt_bytes - former.prompt_bytes))
        except Exception as error:  # noqa: BLE001  # logged by `failure_from`; one request must not end the edge
            self.fail(context, error_from_failure(failure_from(error)))
            return
        context.poison_fingerprint = 0  # the token ids may differ
        self.apply(context, context.request.on_planned_again(plan))

    def _acknowledge_cancel(self, context: RequestContext, acknowledgement: AcknowledgeCancel) -> None:
        self.cancels += 1
        self.cancels_acknowledged += acknowledgement.is_acknowledged
        is_received = context.sink.send_cancelled(acknowledgement)
        context.telemetry.on_cancelled(acknowledgement, self.now(), is_received=is_received)

    def _release_run(self, context: RequestContext) -> None:
        if context.run:
            context.run.discard()
            context.run = None

    def _schedule_tick(self, context: RequestContext) -> None:
        """Replace the timer by one that is due at the request's `next_tick_at`."""
        if context.timer:
            context.timer.cancel()
        context.timer_due_at = context.request.next_tick_at
        delay = max(0.0, context.timer_due_at - self.now())
        context.timer = asyncio.get_running_loop().call_later(delay, self._tick, context)

    def _tick(self, context: RequestContext) -> None:
        context.timer, context.timer_due_at = None, math.inf
        self.apply(context, context.request.tick(self.now()))

    def _remove(self, context: RequestContext) -> None:
        if self.requests.get(context.ticket_id) is None:
            return
        self._release_run(context)
        if context.timer:
            context.timer.cancel()
            context.timer = None
        now = self.now()
        if not context.request.identity.key_id and (
            known := self.auth.find_identity(context.credential, context.spec.priority)
        ):
            context.request.identity = known  # for its telemetry: it ended before it was sent to auth
        self.requests.remove(context, now)
        context.telemetry.end(context.request, now)
        if not self.requests:
            self._is_empty.set()

    @property
    def reservations_open(self) -> int:
        """Reservations of active requests, and those whose settlement auth has not confirmed."""
        return self.auth.unsettled + sum(bool(context.request.reservation_id) for context in self.requests)

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Tables of the admin snapshot."""
        return {"sheds": self.admission.sheds}

    def figures(self) -> dict[str, float]:
        """Figures of the admin snapshot."""
        states = {f"requests_{state}": float(count) for state, count in self.requests.count_by_state().items()}
        return {
            **states,
            "active_requests": len(self.requests),
            "requests_started": self.requests.started,
            "held_bytes": self._memory.held_bytes,
            "unread_bytes": self._memory.unread_bytes + sum(_unpacked_bytes(context) for context in self.requests),
            "slow_readers_ended": self._memory.ended_readers,
            "reservations_open": self.reservations_open,
            **self.auth.figures,
            **self.router.figures,
            **self.model_wait.figures,
            "identity_headers_accepted": self.auth.identity_headers.accepted,
            "identity_headers_rejected": self.auth.identity_headers.rejected,
            "queue_links_up": self.queue.links_up,
            "worker_links_up": self.workers.links_up,
            "region_links_up": self.regions.links_up,
            "spilled_requests": sum(runs for _, runs in self.regions.runs),
            "rejected_by_edge": self.admission.rejected(EDGE_TIER),
            "rejected_by_queue": self.admission.rejected(QUEUE_TIER),
            "cancels": self.cancels,
            "cancels_acknowledged": self.cancels_acknowledged,
        }


def _unpacked_bytes(context: RequestContext) -> int:
    """Return the unread bytes of a request that are not counted in the memory budget: those of a few tokens."""
    return context.sink.buffer.size_bytes - context.sink.buffer.packed_bytes
