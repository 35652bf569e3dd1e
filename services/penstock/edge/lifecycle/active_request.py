"""One request's way through the mesh, as a state machine of plain calls: `now` comes in, effects go out."""

import math

import grpc

from penstock.chassis.errors import Aborted, DeadlineExceeded, PenstockError, Unavailable
from penstock.edge.lifecycle.attempts import Attempt, FailedAttempts
from penstock.edge.lifecycle.effects import (
    Accept,
    AcknowledgeCancel,
    CancelRun,
    Effect,
    Enqueue,
    Fail,
    Finish,
    Reserve,
    Settle,
    StartRun,
    Withdraw,
)
from penstock.edge.lifecycle.output import OutputStream
from penstock.edge.lifecycle.plan import GenerationPlan
from penstock.edge.lifecycle.state import LifecycleLimits, RequestState
from penstock.edge.lifecycle.timeline import Timeline
from penstock.mesh.v1.admission_pb2 import Identity
from penstock.mesh.v1.ticket_pb2 import Lease
from penstock.mesh.v1.worker_pb2 import RunTimes
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, FinishReason

STALL_THRESHOLD_S = 1.0  # s; a timer that is later fired in a process that stood still
RETRYABLE_CODES = (
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.UNAVAILABLE,
)  # refusals of a run that another lease may cure


class ActiveRequest:
    """One request from arrival to settlement. It tells its client one ending and auth one settlement, whatever order
    the world's news come in.
    """

    def __init__(self, ticket_id: str, *, arrived_at: float, deadline: float, limits: LifecycleLimits) -> None:
        self.ticket_id = ticket_id
        self.arrived_at = arrived_at
        self.deadline = deadline
        self.state = RequestState.TOKENIZING
        self.next_tick_at = deadline  # when `tick` is due
        self.timeline = Timeline(arrived_at)
        self.attempt = 1
        self.failed_attempts = FailedAttempts(limits.upstream_timeout)
        self.enqueued_at = math.nan  # first enqueue, kept over attempts
        self.first_token_at = math.nan
        self.last_token_at = math.nan
        self.cancelled_at = math.nan  # when the client left
        self.cached_prompt_tokens = 0
        self.outcome = ""  # as settled
        self.worker_id = ""
        self.identity = Identity()
        self.reservation_id = ""
        self._limits = limits
        self._plan: GenerationPlan | None = None
        self._output: OutputStream | None = None
        self._current_attempt: Attempt | None = None
        self._is_accepted = False
        self._is_answered = False  # the client was told an ending
        self._timeout_at = math.inf  # when not to wait any longer for auth, a queue or a worker's stream
        self._retry_at = math.inf  # when to try again
        self._has_waited_after_stall = False  # to what was said while this process stood still
        self._pending_finish: Finish | None = None  # what to tell after the receipt

    def __repr__(self) -> str:
        return f"<Flight {self.ticket_id} {self.state} attempt {self.attempt} {self._output}>"

    @property
    def is_done(self) -> bool:
        return self.state is RequestState.DONE

    @property
    def is_waiting_for_auth(self) -> bool:
        return self.state is RequestState.RESERVING and not self._is_answered

    @property
    def plan(self) -> GenerationPlan:
        assert self._plan is not None, "asked before the prompt was tokenized"
        return self._plan

    @property
    def output(self) -> OutputStream:
        assert self._output is not None, "asked before the prompt was tokenized"
        return self._output

    @property
    def model(self) -> str:
        """Name of the model that answers; empty until the prompt is tokenized."""
        return self._plan.model if self._plan else ""

    @property
    def prompt_tokens(self) -> int:
        return len(self._plan.prompt_ids) if self._plan else 0

    @property
    def output_tokens(self) -> int:
        return self._output.output_tokens if self._output else 0

    # ------------------------------------------------------------------------------------------------ before a run

    def on_tokenized(self, plan: GenerationPlan, now: float) -> list[Effect]:
        if self.state is not RequestState.TOKENIZING:
            return []
        self.timeline.add_stage("edge", "tokenize", now)
        self._plan, self._output = plan, OutputStream(plan)
        self._enter(RequestState.RESERVING, timeout_at=now + self._limits.upstream_timeout)
        return [Reserve()]

    def on_auth_connected(self) -> list[Effect]:
        """Auth is there again: what was asked may have been lost, and asking twice is harmless."""
        return [Reserve()] if self.state is RequestState.RESERVING else []

    def on_admitted(self, identity: Identity, reservation_id: str, now: float) -> list[Effect]:
        if self.state is not RequestState.RESERVING:
            return []
        self.identity, self.reservation_id = identity, reservation_id
        if self._is_answered:
            return self._settle(self.outcome)
        self.timeline.add_stage("auth", "admission", now)
        self.enqueued_at = now
        if finish := self.output.finish_if_complete():
            return [*self._accept(), *self.output.flush(), *self._complete(finish)]
        return self._enqueue()

    def on_auth_rejected(self, error: PenstockError, now: float) -> list[Effect]:
        if self.state is not RequestState.RESERVING:
            return []
        told = self.fail(error, now)
        self._enter(RequestState.DONE)
        return told

    def on_queued(self) -> list[Effect]:
        if self.state is not RequestState.QUEUED:
            return []
        self._enter(RequestState.QUEUED)  # a shard has it: only the deadline bounds the wait
        return self._accept()

    def on_queue_lost(self) -> list[Effect]:
        """The shard that held the ticket is gone, or another is there at last: it forgot us, we did not."""
        return self._enqueue() if self.state is RequestState.QUEUED else []

    def on_no_queue(self, now: float) -> list[Effect]:
        """No shard is there to take the ticket."""
        if self.state is RequestState.QUEUED:
            self._enter(RequestState.QUEUED, timeout_at=min(self._timeout_at, now + self._limits.upstream_timeout))
        return []

    def on_queue_rejected(self, error: PenstockError, now: float, *, is_transient: bool = False) -> list[Effect]:
        """The queue will not serve the ticket, or have its lease started; `is_passing`: for a moment."""
        if self.state is RequestState.LEASED:  # asked again, the queue says it of the ticket
            return [Withdraw(), *self._on_attempt_failed(now, died=False, never_ran=True)]
        if self.state is not RequestState.QUEUED:
            return []
        lacks_worker, wait = error.reason == "NO_WORKER", error.retry_after or self._limits.retry_interval
        if lacks_worker and self.failed_attempts.clear_avoided():
            return self._enqueue()
        if is_transient or (lacks_worker and self.failed_attempts.can_wait(now + wait)):
            self._enter(RequestState.QUEUED, retry_at=now + wait)
            return []
        return [*self._mark_answered(Fail(error)), *self._settle("shed")]

    def on_leased(self, lease: Lease, now: float) -> list[Effect]:
        if self.state is RequestState.QUEUED and lease.attempt == self.attempt:
            self._current_attempt, self.worker_id = Attempt(lease, self.output_tokens, now), lease.worker_id
            self._enter(RequestState.LEASED, timeout_at=now + self._current_attempt.ttl)
            return [*self._accept(), StartRun(lease)]
        if self.state in (RequestState.QUEUED, RequestState.LEASED, RequestState.RUNNING):
            return []  # of an earlier attempt, or the same again: a withdrawal would take the present ticket
        return [Withdraw()]

    # ------------------------------------------------------------------------------------------------- during a run

    def on_run_started(self) -> list[Effect]:
        if self.state is RequestState.LEASED:
            self._enter(RequestState.RUNNING)
        return []

    def on_token(self, index: int, token_id: int, logprob: float | None, now: float) -> list[Effect]:
        if self.state is not RequestState.RUNNING:
            return []
        try:
            emit = self.output.append(index, token_id, logprob)
        except IndexError:
            return [CancelRun(), *self._on_attempt_failed(now, died=True)]
        if emit is None:
            return []
        self.last_token_at = now
        if self.output_tokens == 1:
            self.first_token_at = now
        if not self.output.stop_string:
            return [emit]
        self._pending_finish = self.output.finish_if_complete()
        return [emit, *self._stop_run(now)]

    def on_run_finished(
        self, reason: "FinishReason.ValueType", tokens: int, cached_prompt_tokens: int, times: RunTimes, now: float
    ) -> list[Effect]:
        self.cached_prompt_tokens = min(cached_prompt_tokens, self.prompt_tokens)
        if self.state is RequestState.STOPPING:
            return self._on_run_over(now, tokens=tokens, times=times)
        if self.state is not RequestState.RUNNING:
            return []
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
        if error.code in RETRYABLE_CODES:
            return self._on_attempt_failed(now, died=error.reason == "ENGINE_DIED", never_ran=never_ran)
        return [*self._mark_answered(Fail(error)), *self._settle("failed")]

    def on_worker_lost(self, now: float, *, died: bool) -> list[Effect]:
        """The stream to the worker is gone; `died`: not on purpose."""
        if self.state is RequestState.STOPPING:
            return self._on_run_over(now)
        if self.state not in (RequestState.LEASED, RequestState.RUNNING):
            return []
        return self._on_attempt_failed(now, died=died and self.state is RequestState.RUNNING)

    # ------------------------------------------------------------------------------------------------ from the outside

    def on_client_cancelled(self, now: float) -> list[Effect]:
        """The client cancelled; idempotent, and too late once the answer's end is known."""
        if self._is_answered or self.state is RequestState.STOPPING:
            return []
        self.cancelled_at = now
        self.outcome = "cancelled"
        if self.state is RequestState.RUNNING:
            return self._stop_run(now)
        return self._abort(AcknowledgeCancel(self.output_tokens, 0, 0.0, is_acknowledged=False), now)

    def fail(self, error: PenstockError, now: float) -> list[Effect]:
        """End in an error that arose on this side: a deadline, a prompt that cannot be, a client that does not read."""
        if self._is_answered or self.state is RequestState.STOPPING:
            return []
        self.outcome = "failed"
        if self.state is RequestState.RUNNING:
            return [*self._mark_answered(Fail(error)), *self._stop_run(now)]
        return self._abort(Fail(error), now)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due at `wake_at`; harmless before."""
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
        if self._is_answered:  # auth never said whether it granted; the reservation lapses by itself
            self._enter(RequestState.DONE)
            return []
        if now >= self.deadline:
            return self.fail(DeadlineExceeded("the answer was not complete at its deadline"), now)
        if now >= self._timeout_at:
            return self._time_out(now)
        return self._enqueue()

    # -------------------------------------------------------------------------------------------------------- inside

    def _enter(self, state: RequestState, *, timeout_at: float = math.inf, retry_at: float = math.inf) -> None:
        self.state, self._timeout_at, self._retry_at = state, timeout_at, retry_at
        deadline = math.inf if self._is_answered else self.deadline
        self.next_tick_at = math.inf if state is RequestState.DONE else min(deadline, timeout_at, retry_at)
        self._has_waited_after_stall = False

    def _accept(self) -> list[Effect]:
        first, self._is_accepted = not self._is_accepted, True
        return [Accept()] if first else []

    def _enqueue(self) -> list[Effect]:
        self._enter(RequestState.QUEUED, timeout_at=self._timeout_at if self.state is RequestState.QUEUED else math.inf)
        return [Enqueue()]

    def _time_out(self, now: float) -> list[Effect]:
        if self.state is RequestState.LEASED:
            return [Withdraw(), *self._on_attempt_failed(now, died=False)]
        retry_after = self._limits.upstream_timeout / 10
        if self.state is RequestState.RESERVING:
            return self.fail(_upstream_lost("auth does not answer", "AUTH_LOST", retry_after), now)
        return self.fail(_upstream_lost("no queue can be reached", "QUEUE_LOST", retry_after), now)

    def _on_attempt_failed(self, now: float, *, died: bool, never_ran: bool = False) -> list[Effect]:
        """Go back to the queue with what was emitted; the next run continues with the same text."""
        if self._current_attempt:
            self._current_attempt.record_lost(self.timeline, now)
        self.failed_attempts.record(self.worker_id, now, died=died, never_ran=never_ran)
        if finish := self.output.finish_if_complete():
            return [*self.output.flush(), *self._complete(finish)]
        if self.failed_attempts.count >= self._limits.max_attempts:
            text = f"{self.failed_attempts.count} runs were lost with their workers; the same request may succeed later"
            return [*self._mark_answered(Fail(Aborted(text, reason="ATTEMPTS_EXHAUSTED"))), *self._settle("failed")]
        self.attempt += 1
        if (
            self.failed_attempts.consecutive_rejections > 1
        ):  # its scheduler may be the last to hear of what ails the worker
            self._enter(RequestState.QUEUED, retry_at=now + self._limits.retry_interval)
            return []
        return self._enqueue()

    def _stop_run(self, now: float) -> list[Effect]:
        self.state, self._has_waited_after_stall = RequestState.STOPPING, False
        self.next_tick_at = now + self._limits.cancel_ack_timeout
        return [CancelRun()]

    def _on_run_over(
        self, now: float, *, tokens: int | None = None, kv_blocks_freed: int = 0, times: RunTimes | None = None
    ) -> list[Effect]:
        """The run is over for certain, or its worker is not there to say so (no `tokens`, no `times`)."""
        self._close_attempt(times or RunTimes(), now)
        if self._pending_finish:
            return self._complete(self._pending_finish)
        made = (
            self.output_tokens
            if tokens is None or not self._current_attempt
            else self._current_attempt.emitted_before + tokens
        )
        told: list[Effect] = []
        if not self._is_answered:
            told = self._mark_answered(
                AcknowledgeCancel(made, kv_blocks_freed, now - self.cancelled_at, tokens is not None)
            )
        return [*told, *self._settle(self.outcome, made)]

    def _close_attempt(self, times: RunTimes, now: float) -> None:
        if self._current_attempt:
            self._current_attempt.record_finished(self.timeline, times, self.last_token_at, now)

    def _abort(self, ending: Effect, now: float) -> list[Effect]:
        """End what does not run."""
        told = self._mark_answered(ending)
        if self.state is RequestState.RESERVING:  # what auth grants yet has to be given back when it comes
            self._enter(RequestState.RESERVING, timeout_at=now + self._limits.upstream_timeout)
            return told
        if self.state is RequestState.TOKENIZING:
            self._enter(RequestState.DONE)
            return told
        return [Withdraw(), *told, *self._settle(self.outcome)]

    def _mark_answered(self, ending: Effect) -> list[Effect]:
        assert not self._is_answered, "an answer has one ending"
        self._is_answered = True
        return [ending]

    def _complete(self, finish: Finish) -> list[Effect]:
        outcome = "length" if finish.reason == FINISH_REASON_LENGTH else "stop"
        return [*self._mark_answered(finish), *self._settle(outcome)]

    def _settle(self, outcome: str, output_tokens: int | None = None) -> list[Effect]:
        self.outcome = outcome
        self._enter(RequestState.DONE)
        made = self.output_tokens if output_tokens is None else output_tokens
        has_run = made > 0 or (self._current_attempt is not None and self._current_attempt.has_prefilled)
        return [Settle(self.prompt_tokens if has_run else 0, made, outcome)]


def _upstream_lost(text: str, reason: str, retry_after: float) -> Unavailable:
    return Unavailable(f"{text}; retry in {retry_after:g} s", reason=reason, retry_after=retry_after)
