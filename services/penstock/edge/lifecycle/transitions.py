"""Transitions of one request between states, each with the effects that it causes."""

import math
from collections.abc import Callable

from penstock.chassis.errors import Aborted, PenstockError
from penstock.edge.lifecycle.attempts import Attempt
from penstock.edge.lifecycle.effects import (
    Accept,
    AcknowledgeCancel,
    CancelRun,
    Effect,
    Enqueue,
    Fail,
    Finish,
    PlanAgain,
    Settle,
    Withdraw,
)
from penstock.edge.lifecycle.record import LifecycleLimits, RequestRecord, RequestState
from penstock.mesh.v1.admission_pb2 import Identity
from penstock.mesh.v1.worker_pb2 import RunTimes
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH


def model_replaced() -> Aborted:
    text = "the model was replaced, and no worker serves the version that began this answer; send the request again"
    return Aborted(f"{text} without the tokens received so far", reason="MODEL_REPLACED", retry_after=0.0)


class EarlyTicket:
    """A ticket that was enqueued before auth admitted its request. Its events take effect once auth has done so."""

    def __init__(self, identity: Identity) -> None:
        self._rights = _rights_of(identity)
        self.events: list[Callable[[], list[Effect]]] = []

    def is_valid_for(self, identity: Identity) -> bool:
        """Whether a ticket of this identity would be the same."""
        return self._rights == _rights_of(identity)


def _rights_of(identity: Identity) -> tuple[object, ...]:
    return identity.tenant_id, identity.priority, identity.weight, identity.cache_salt


class RequestTransitions(RequestRecord):
    """Enters states, sets their timers, and ends a request with one answer to the client and one settlement to auth."""

    def __init__(self, ticket_id: str, *, arrived_at: float, deadline: float, limits: LifecycleLimits) -> None:
        super().__init__(ticket_id, arrived_at=arrived_at, deadline=deadline, limits=limits)
        self.next_tick_at = deadline  # when `tick` is due
        self._limits = limits
        self._current_attempt: Attempt | None = None
        self._is_accepted = False
        self._is_answered = False  # the client received the effect that ends its answer
        self._timeout_at = math.inf  # when the wait for auth, a queue shard or a worker's stream ends
        self._is_planned_again = False  # it waits for a plan of another version, and has no ticket
        self._has_waited_after_stall = False  # frames that arrived during a stall of this process were handled first
        self._early_ticket: EarlyTicket | None = None  # of a request that auth has not admitted yet
        self._pending_finish: Finish | None = None  # sent once the worker has acknowledged the stop of the run

    @property
    def latest_attempt(self) -> Attempt | None:
        """The attempt of the latest lease, lost or not. None before the first lease."""
        return self._current_attempt

    def _enter(self, state: RequestState, *, timeout_at: float = math.inf, retry_at: float = math.inf) -> None:
        self.state, self._timeout_at = state, timeout_at
        deadline = math.inf if self._is_answered else self.deadline
        self.next_tick_at = math.inf if state is RequestState.DONE else min(deadline, timeout_at, retry_at)
        self._has_waited_after_stall = False

    def _accept(self) -> list[Effect]:
        first, self._is_accepted = not self._is_accepted, True
        return [Accept()] if first else []

    def _enqueue(self) -> list[Effect]:
        self._enter(RequestState.QUEUED, timeout_at=self._timeout_at if self.state is RequestState.QUEUED else math.inf)
        return [Enqueue()]

    def _withdraw_early(self) -> list[Effect]:
        early, self._early_ticket = self._early_ticket, None
        return [Withdraw()] if early else []

    def _enqueue_admitted(self, identity: Identity) -> list[Effect]:
        """Enqueue an admitted request, or apply the events of its early ticket.

        A ticket of other rights is replaced. The new attempt number fences leases of the former one.
        """
        early, self._early_ticket = self._early_ticket, None
        if early and early.is_valid_for(identity):
            self._enter(RequestState.QUEUED)
            return [effect for event in early.events for effect in event()]
        if early is None:
            return self._enqueue()
        self.attempt += 1
        return [Withdraw(), *self._enqueue()]

    def _on_attempt_failed(
        self, now: float, *, died: bool, never_ran: bool = False, is_preempted: bool = False
    ) -> list[Effect]:
        """Enqueue the request again with the tokens emitted so far; the next run continues the same text."""
        if self._current_attempt:
            lost = self._current_attempt.record_lost(self.timeline, self.output_tokens, now)
            self.lost_runs = (*self.lost_runs, lost)
        self.failed_attempts.record(self.worker_id, now, died=died, never_ran=never_ran, is_preempted=is_preempted)
        if finish := self.output.finish_if_complete():
            return [*self.output.flush(), *self._complete(finish)]
        if self.failed_attempts.count >= self._limits.max_attempts:
            text = f"{self.failed_attempts.count} runs were lost with their workers; the same request may succeed later"
            return self._end_in_error(Aborted(text, reason="ATTEMPTS_EXHAUSTED"), "failed")
        self.attempt += 1
        # After two rejections in a row, wait: the scheduler may not have received the worker's new state yet.
        if self.failed_attempts.consecutive_rejections > 1:
            self._enter(RequestState.QUEUED, retry_at=now + self._limits.retry_interval)
            return []
        return self._enqueue()

    def _plan_again(self) -> list[Effect]:
        """Wait without a ticket for a plan of another version. The new attempt number fences leases of this version."""
        self.attempt += 1
        self._is_planned_again = True
        self._enter(RequestState.QUEUED)
        return [Withdraw(), PlanAgain()]

    def _stop_run(self, now: float) -> list[Effect]:
        self.state, self._has_waited_after_stall = RequestState.STOPPING, False
        self.next_tick_at = now + self._limits.cancel_ack_timeout
        return [CancelRun()]

    def _on_run_over(
        self, now: float, *, tokens: int | None = None, kv_blocks_freed: int = 0, times: RunTimes | None = None
    ) -> list[Effect]:
        """End a request whose run has stopped, or whose worker is lost (then without `tokens` and `times`)."""
        self._close_attempt(times or RunTimes(), now)
        if self._pending_finish:
            return self._complete(self._pending_finish)
        generated = self.output_tokens
        if tokens is not None and self._current_attempt:
            generated = self._current_attempt.emitted_before + tokens
        answer: list[Effect] = []
        if not self._is_answered:
            waited_s = now - self.cancelled_at
            answer = self._mark_answered(AcknowledgeCancel(generated, kv_blocks_freed, waited_s, tokens is not None))
        return [*answer, *self._settle(self.outcome, generated)]

    def _close_attempt(self, times: RunTimes, now: float) -> None:
        if self._current_attempt:
            self._current_attempt.record_finished(self.timeline, times, self.last_token_at, now)

    def _abort(self, ending: Effect, now: float) -> list[Effect]:
        """End a request that has no run."""
        answer = self._mark_answered(ending)
        if self.state is RequestState.RESERVING:  # wait for auth: a reservation that it grants must be settled
            self._enter(RequestState.RESERVING, timeout_at=now + self._limits.upstream_timeout)
            return [*self._withdraw_early(), *answer]
        if self.state is RequestState.TOKENIZING:
            self._enter(RequestState.DONE)
            return answer
        return [Withdraw(), *answer, *self._settle(self.outcome)]

    def _mark_answered(self, ending: Effect) -> list[Effect]:
        assert not self._is_answered, "an answer has one ending"
        self._is_answered = True
        return [ending]

    def _complete(self, finish: Finish) -> list[Effect]:
        outcome = "length" if finish.reason == FINISH_REASON_LENGTH else "stop"
        return [*self._mark_answered(finish), *self._settle(outcome)]

    def _end_in_error(self, error: PenstockError, outcome: str) -> list[Effect]:
        return [*self._mark_answered(Fail(error)), *self._settle(outcome)]

    def _settle(self, outcome: str, output_tokens: int | None = None) -> list[Effect]:
        self.outcome = outcome
        self._enter(RequestState.DONE)
        generated = self.output_tokens if output_tokens is None else output_tokens
        has_run = generated > 0 or (self._current_attempt is not None and self._current_attempt.has_prefilled)
        if self.handed_over_tokens is not None:
            generated = self.handed_over_tokens
            has_run = generated > 0
        prompt = self.charged_prompt_tokens if has_run else 0
        return [Settle(prompt, generated, outcome, min(self.cached_prompt_tokens, prompt), self.worker_id)]
