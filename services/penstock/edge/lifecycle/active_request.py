"""One request as a state machine of plain calls: events come in with `now`, effects are returned."""

import math
from array import array
from collections.abc import Sequence
from functools import partial

from penstock.chassis.errors import DeadlineExceeded, Overloaded, PenstockError, Unavailable
from penstock.edge.lifecycle.attempts import Attempt
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
    StartRun,
    Withdraw,
)
from penstock.edge.lifecycle.output import GenerationPlan, LikeliestTokens, OutputStream
from penstock.edge.lifecycle.record import RETRYABLE_CODES, RETRYABLE_REASONS, STALL_THRESHOLD_S, RequestState
from penstock.edge.lifecycle.region_events import RegionEvents
from penstock.edge.lifecycle.transitions import EarlyTicket, model_replaced
from penstock.mesh.v1.admission_pb2 import Identity
from penstock.mesh.v1.ticket_pb2 import Lease
from penstock.mesh.v1.worker_pb2 import RunTimes
from penstock.v1.inference_pb2 import FinishReason


class ActiveRequest(RegionEvents):
    """One request from arrival to settlement, as the events that change it.

    In any order of events the client receives one ending and auth receives one settlement.
    """

    @property
    def is_waiting_for_auth(self) -> bool:
        return self.state is RequestState.RESERVING and not self._is_answered

    # Before a run.

    def on_held(self, since: float, now: float) -> None:
        """The request has waited for a worker. It keeps the place of its arrival in the queue."""
        if math.isnan(self.enqueued_at):
            self.enqueued_at = since
        self.timeline.add_stage("edge", "hold", now)

    def on_tokenized(self, plan: GenerationPlan, now: float, *, enqueues_early: bool = False) -> list[Effect]:
        """Reserve tokens. With `enqueues_early`, for a cached `identity`, the ticket waits beside the reservation.

        Its lease is kept until auth has admitted the request, and the client is told of the ticket only then.
        """
        if self.state is not RequestState.TOKENIZING:
            return []
        self.timeline.add_stage("edge", "tokenize", now)
        self._plan, self._output = plan, OutputStream(plan)
        self._enter(RequestState.RESERVING, timeout_at=now + self._limits.upstream_timeout)
        if not enqueues_early:
            return [Reserve()]
        self._early_ticket = EarlyTicket(self.identity)
        if math.isnan(self.enqueued_at):
            self.enqueued_at = now
        return [Enqueue(), Reserve()]  # in this order, as auth fallback decides within `Reserve`

    def on_shed(self, plan: GenerationPlan, error: PenstockError) -> list[Effect]:
        """End in a rejection for load, before any tokens are reserved."""
        if self.state is not RequestState.TOKENIZING:
            return []
        self._plan, self._output = plan, OutputStream(plan)
        self.outcome = "shed"
        self._enter(RequestState.DONE)
        return self._mark_answered(Fail(error))

    def on_auth_connected(self) -> list[Effect]:
        """Reserve again over a new stream to auth: the first frame may be lost, and `reserve` is idempotent."""
        return [Reserve()] if self.state is RequestState.RESERVING else []

    def on_admitted(self, identity: Identity, reservation_id: str, now: float) -> list[Effect]:
        if self.state is not RequestState.RESERVING:
            return []
        self.identity, self.reservation_id = identity, reservation_id
        if self._is_answered:
            return self._settle(self.outcome)
        self.timeline.add_stage("auth", "admission", now)
        if math.isnan(self.enqueued_at):  # else an early ticket, whose shard may be lost since, has set its place
            self.enqueued_at = now
        if finish := self.output.finish_if_complete():
            ending = [*self._accept(), *self.output.flush(), *self._complete(finish)]
            return [*self._withdraw_early(), *ending]
        return self._enqueue_admitted(identity)

    def on_auth_rejected(self, error: PenstockError, now: float) -> list[Effect]:
        if self.state is not RequestState.RESERVING:
            return []
        answer = self.fail(error, now)
        self._enter(RequestState.DONE)
        return answer

    def on_queued(self) -> list[Effect]:
        if self._early_ticket:
            self._early_ticket.events.append(self.on_queued)
            return []
        if self.state is not RequestState.QUEUED:
            return []
        self.was_queued = True
        self._enter(RequestState.QUEUED)  # in a shard, only the deadline bounds the wait
        return self._accept()

    def on_queue_lost(self) -> list[Effect]:
        """Enqueue again: the shard that held the ticket is lost, or a first shard is connected."""
        self._early_ticket = None  # enqueued once auth has admitted the request
        return self._enqueue() if self.state is RequestState.QUEUED and not self._is_planned_again else []

    def on_model_replaced(self) -> list[Effect]:
        """Workers serve another version of the model only. A request without any output moves to it.

        A request with output waits for its version until the queue rejects it: a worker may be restarting, and the text
        so far must not be continued by other weights.
        """
        if self.state is not RequestState.QUEUED or self._is_planned_again or self.output.token_ids:
            return []
        return self._plan_again()

    def on_planned_again(self, plan: GenerationPlan) -> list[Effect]:
        if not self._is_planned_again or self.state is not RequestState.QUEUED:
            return []
        self._is_planned_again = False
        self._plan, self._output = plan, OutputStream(plan)
        return [*([Accept()] if self._is_accepted else []), *self._enqueue()]

    def on_no_queue(self, now: float) -> list[Effect]:
        """Start the timeout of a request for which no queue shard is connected."""
        self._early_ticket = None  # enqueued once auth has admitted the request
        if self.state is RequestState.QUEUED:
            self._enter(RequestState.QUEUED, timeout_at=min(self._timeout_at, now + self._limits.upstream_timeout))
        return []

    def on_queue_rejected(
        self, error: PenstockError, now: float, *, is_transient: bool = False, is_replaced: bool = False
    ) -> list[Effect]:
        """The queue rejected or evicted the ticket, or revoked its lease. A transient rejection is retried.

        `is_replaced`: no worker serves the version of the model, while workers serve another one.
        """
        if self._early_ticket:
            self._early_ticket.events.append(
                partial(self.on_queue_rejected, error, now, is_transient=is_transient, is_replaced=is_replaced)
            )
            return []
        if self.state is RequestState.LEASED:
            return [Withdraw(), *self._on_attempt_failed(now, died=False, never_ran=True)]
        if self.state is not RequestState.QUEUED:
            return []
        if is_replaced and not self.output.token_ids:
            return self._plan_again()
        lacks_worker = is_replaced or error.reason == "NO_WORKER"
        wait = error.retry_after or self._limits.retry_interval
        if lacks_worker and self.failed_attempts.clear_avoided():
            return self._enqueue()
        if is_transient or (lacks_worker and self.failed_attempts.can_wait(now + wait)):
            self._enter(RequestState.QUEUED, retry_at=now + wait)
            return []
        if is_replaced:
            return self._end_in_error(model_replaced(), "failed")
        if self._limits.spills and (lacks_worker or isinstance(error, Overloaded)):
            return self._offer(error)
        return self._end_in_error(error, "shed")

    def on_leased(self, lease: Lease, now: float) -> list[Effect]:
        if lease.model not in ("", self.model_key):
            return []
        if self._early_ticket:
            self._early_ticket.events.append(partial(self.on_leased, lease, now))
            return []
        if self.state is RequestState.QUEUED and lease.attempt == self.attempt:
            self.was_queued = True
            self._current_attempt, self.worker_id = Attempt(lease, self.output_tokens, now), lease.worker_id
            self._enter(RequestState.LEASED, timeout_at=now + self._current_attempt.ttl)
            return [*self._accept(), StartRun(lease)]
        if self.state in (RequestState.QUEUED, RequestState.OFFERED, RequestState.LEASED, RequestState.RUNNING):
            return []  # an old or repeated lease; a withdrawal would remove the current ticket
        return [Withdraw()]

    # During a run.

    def on_run_started(self) -> list[Effect]:
        if self.state is RequestState.LEASED:
            self._enter(RequestState.RUNNING)
        return []

    def on_token(
        self, index: int, token_id: int, logprob: float | None, now: float, top: LikeliestTokens | None = None
    ) -> Emit | list[Effect]:
        """Handle a token. Returns the bare effect of a token that changes nothing else, as nearly all tokens are."""
        output = self._output
        if self.state is not RequestState.RUNNING or output is None:
            return []
        try:
            emit = output.append(index, token_id, logprob, top)
        except IndexError:
            return [CancelRun(), *self._on_attempt_failed(now, died=True)]
        if emit is None:
            return []
        self.last_token_at = now
        if output.output_tokens == 1:
            self.first_token_at = now
        if not output.stop_string:
            return emit
        self._pending_finish = output.finish_if_complete()
        return [emit, *self._stop_run(now)]

    def on_run_finished(
        self,
        reason: "FinishReason.ValueType",
        tokens: int,
        cached_prompt_tokens: int,
        times: RunTimes,
        now: float,
        *,
        embedding: Sequence[float] = (),
    ) -> list[Effect]:
        """The run has finished. A worker that sends no proper embedding where one is wanted counts as lost."""
        self.cached_prompt_tokens = min(cached_prompt_tokens, self.prompt_tokens)
        if self.state is RequestState.STOPPING:
            return self._on_run_over(now, tokens=tokens, times=times)
        if self.state is not RequestState.RUNNING:
            return []
        if size := self.plan.embedding_size:
            if len(embedding) != size or not math.isfinite(sum(embedding)):
                return self._on_attempt_failed(now, died=True)
            self.embedding = array("f", embedding)
        self._close_attempt(times, now)
        return [*self.output.flush(), *self._complete(Finish(reason, ""))]

    def on_run_stopped(self, tokens: int, kv_blocks_freed: int, times: RunTimes, now: float) -> list[Effect]:
        if self.state is RequestState.STOPPING:
            return self._on_run_over(now, tokens=tokens, kv_blocks_freed=kv_blocks_freed, times=times)
        return self._on_attempt_failed(now, died=False) if self.state is RequestState.RUNNING else []

    def on_run_rejected(self, error: PenstockError, now: float, *, never_ran: bool = False) -> list[Effect]:
        if self.state is RequestState.STOPPING:
            return self._on_run_over(now)
        if self.state is not RequestState.RUNNING:
            return []
        if error.code in RETRYABLE_CODES or error.reason in RETRYABLE_REASONS:
            is_preempted = error.reason == "LEASE_REVOKED"
            died = error.reason == "ENGINE_DIED"
            return self._on_attempt_failed(now, died=died, never_ran=never_ran, is_preempted=is_preempted)
        return self._end_in_error(error, "failed")

    def on_worker_lost(self, now: float, *, died: bool) -> list[Effect]:
        """The stream to the worker is lost; `died` is false if the worker closed it deliberately."""
        if self.state is RequestState.STOPPING:
            return self._on_run_over(now)
        if self.state not in (RequestState.LEASED, RequestState.RUNNING):
            return []
        return self._on_attempt_failed(now, died=died and self.state is RequestState.RUNNING)

    # From client and clock.

    def on_client_cancelled(self, now: float) -> list[Effect]:
        """The client cancelled. Idempotent; without effect once the answer has ended."""
        if self._is_answered or self.state is RequestState.STOPPING:
            return []
        self.cancelled_at = now
        self.outcome = "cancelled"
        if self.state is RequestState.RUNNING:
            return self._stop_run(now)
        return self._abort(AcknowledgeCancel(self.output_tokens, 0, 0.0, is_acknowledged=False), now)

    def fail(self, error: PenstockError, now: float) -> list[Effect]:
        """End in an error of the edge itself: a missed deadline, an invalid prompt, or a client that does not read."""
        if self._is_answered or self.state is RequestState.STOPPING:
            return []
        self.outcome = "failed"
        if self.state is RequestState.RUNNING:
            return [*self._mark_answered(Fail(error)), *self._stop_run(now)]
        return self._abort(Fail(error), now)

    def tick(self, now: float) -> list[Effect]:
        """Handle the timer that is due at `next_tick_at`. Returns no effects before that time.

        After a stall of this process the first tick grants `STALL_THRESHOLD_S` more, so that frames which arrived
        during the stall are handled before a timeout is declared. A deadline is not extended.
        """
        if now < self.next_tick_at or self.is_done:
            return []
        if (
            now > self.next_tick_at + STALL_THRESHOLD_S
            and not self._has_waited_after_stall
            and (now < self.deadline or self.state is RequestState.STOPPING)
        ):
            self._has_waited_after_stall, self.next_tick_at = True, now + STALL_THRESHOLD_S
            return []
        if self.state is RequestState.STOPPING:
            return self._on_run_over(now)
        if self._is_answered:  # auth did not answer in time; a reservation that it holds expires there
            self._enter(RequestState.DONE)
            return []
        if now >= self.deadline:
            return self.fail(DeadlineExceeded("the answer was not complete at its deadline"), now)
        if now >= self._timeout_at:
            return self._time_out(now)
        return self._enqueue()

    def _time_out(self, now: float) -> list[Effect]:
        if self.state is RequestState.LEASED:
            return [Withdraw(), *self._on_attempt_failed(now, died=False)]
        if self.state is RequestState.OFFERED:
            return self.on_offer_rejected()
        retry_after = self._limits.upstream_timeout / 10
        if self.state is RequestState.RESERVING:
            return self.fail(_upstream_lost("auth does not answer", "AUTH_LOST", retry_after), now)
        return self.fail(_upstream_lost("no queue can be reached", "QUEUE_LOST", retry_after), now)


def _upstream_lost(text: str, reason: str, retry_after: float) -> Unavailable:
    return Unavailable(f"{text}; retry in {retry_after:g} s", reason=reason, retry_after=retry_after)
