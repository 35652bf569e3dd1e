"""One request's way through the mesh, as a state machine of plain calls: `now` comes in, effects go out."""

import math

import grpc

from penstock.chassis.errors import Aborted, DeadlineExceeded, PenstockError, Unavailable
from penstock.edge.flight.answer import Answer
from penstock.edge.flight.effects import (
    Accept,
    Cancelled,
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
from penstock.edge.flight.losses import Losses
from penstock.edge.flight.plan import Plan
from penstock.edge.flight.run import Run
from penstock.edge.flight.state import FlightLimits, State
from penstock.edge.flight.timeline import Timeline
from penstock.mesh.v1.admission_pb2 import Identity
from penstock.mesh.v1.ticket_pb2 import Lease
from penstock.mesh.v1.worker_pb2 import RunTimes
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, FinishReason

LATE = 1.0  # s; a timer that is later fired in a process that stood still
AGAIN = (grpc.StatusCode.ABORTED, grpc.StatusCode.UNAVAILABLE)  # refusals of a run that another lease may cure


class Flight:
    """One request from arrival to settlement. It tells its client one ending and auth one settlement, whatever order
    the world's news come in.
    """

    def __init__(self, ticket_id: str, *, arrived: float, deadline: float, limits: FlightLimits) -> None:
        self.ticket_id = ticket_id
        self.arrived = arrived
        self.deadline = deadline
        self.state = State.TOKENIZING
        self.wake_at = deadline  # when `tick` is due
        self.timeline = Timeline(arrived)
        self.attempt = 1
        self.losses = Losses(limits.patience)
        self.enqueued_at = math.nan  # first enqueue, kept over attempts
        self.first_token_at = math.nan
        self.last_token_at = math.nan
        self.left_at = math.nan  # when the client left
        self.cached_prompt_tokens = 0
        self.outcome = ""  # as settled
        self.worker_id = ""
        self.identity = Identity()
        self.reservation_id = ""
        self._limits = limits
        self._plan: Plan | None = None
        self._answer: Answer | None = None
        self._run: Run | None = None
        self._is_accepted = False
        self._is_answered = False  # the client was told an ending
        self._give_up_at = math.inf  # when not to wait any longer for auth, a queue or a worker's stream
        self._enqueue_at = math.inf  # when to try again
        self._listens = False  # to what was said while this process stood still
        self._finish: Finish | None = None  # what to tell after the receipt

    def __repr__(self) -> str:
        return f"<Flight {self.ticket_id} {self.state} attempt {self.attempt} {self._answer}>"

    @property
    def is_done(self) -> bool:
        return self.state is State.DONE

    @property
    def waits_for_auth(self) -> bool:
        return self.state is State.RESERVING and not self._is_answered

    @property
    def plan(self) -> Plan:
        assert self._plan is not None, "asked before the prompt was tokenized"
        return self._plan

    @property
    def answer(self) -> Answer:
        assert self._answer is not None, "asked before the prompt was tokenized"
        return self._answer

    @property
    def model(self) -> str:
        """Name of the model that answers; empty until the prompt is tokenized."""
        return self._plan.model if self._plan else ""

    @property
    def prompt_tokens(self) -> int:
        return len(self._plan.prompt_ids) if self._plan else 0

    @property
    def output_tokens(self) -> int:
        return self._answer.output_tokens if self._answer else 0

    # ------------------------------------------------------------------------------------------------ before a run

    def tokenized(self, plan: Plan, now: float) -> list[Effect]:
        if self.state is not State.TOKENIZING:
            return []
        self.timeline.lap("edge", "tokenize", now)
        self._plan, self._answer = plan, Answer(plan)
        self._go(State.RESERVING, give_up_at=now + self._limits.patience)
        return [Reserve()]

    def auth_up(self) -> list[Effect]:
        """Auth is there again: what was asked may have been lost, and asking twice is harmless."""
        return [Reserve()] if self.state is State.RESERVING else []

    def admitted(self, identity: Identity, reservation_id: str, now: float) -> list[Effect]:
        if self.state is not State.RESERVING:
            return []
        self.identity, self.reservation_id = identity, reservation_id
        if self._is_answered:
            return self._end(self.outcome)
        self.timeline.lap("auth", "admission", now)
        self.enqueued_at = now
        if finish := self.answer.ending():
            return [*self._accept(), *self.answer.rest(), *self._finished(finish)]
        return self._enqueue()

    def refused(self, error: PenstockError, now: float) -> list[Effect]:
        if self.state is not State.RESERVING:
            return []
        told = self.fail(error, now)
        self._go(State.DONE)
        return told

    def queued(self) -> list[Effect]:
        if self.state is not State.QUEUED:
            return []
        self._go(State.QUEUED)  # a shard has it: only the deadline bounds the wait
        return self._accept()

    def queue_lost(self) -> list[Effect]:
        """The shard that held the ticket is gone, or another is there at last: it forgot us, we did not."""
        return self._enqueue() if self.state is State.QUEUED else []

    def stranded(self, now: float) -> list[Effect]:
        """No shard is there to take the ticket."""
        if self.state is State.QUEUED:
            self._go(State.QUEUED, give_up_at=min(self._give_up_at, now + self._limits.patience))
        return []

    def shed(self, error: PenstockError, now: float, *, is_passing: bool = False) -> list[Effect]:
        """The queue will not serve the ticket, or have its lease started; `is_passing`: for a moment."""
        if self.state is State.LEASED:  # asked again, the queue says it of the ticket
            return [Withdraw(), *self._run_lost(now, died=False, never_ran=True)]
        if self.state is not State.QUEUED:
            return []
        lacks_worker, wait = error.reason == "NO_WORKER", error.retry_after or self._limits.retry
        if lacks_worker and self.losses.forgive():
            return self._enqueue()
        if is_passing or (lacks_worker and self.losses.may_wait(now + wait)):
            self._go(State.QUEUED, enqueue_at=now + wait)
            return []
        return [*self._told(Fail(error)), *self._end("shed")]

    def leased(self, lease: Lease, now: float) -> list[Effect]:
        if self.state is State.QUEUED and lease.attempt == self.attempt:
            self._run, self.worker_id = Run(lease, self.output_tokens, now), lease.worker_id
            self._go(State.LEASED, give_up_at=now + self._run.ttl)
            return [*self._accept(), StartRun(lease)]
        if self.state in (State.QUEUED, State.LEASED, State.RUNNING):
            return []  # of an earlier attempt, or the same again: a withdrawal would take the present ticket
        return [Withdraw()]

    # ------------------------------------------------------------------------------------------------- during a run

    def started(self) -> list[Effect]:
        if self.state is State.LEASED:
            self._go(State.RUNNING)
        return []

    def token(self, index: int, token_id: int, logprob: float | None, now: float) -> list[Effect]:
        if self.state is not State.RUNNING:
            return []
        try:
            emit = self.answer.take(index, token_id, logprob)
        except IndexError:
            return [CancelRun(), *self._run_lost(now, died=True)]
        if emit is None:
            return []
        self.last_token_at = now
        if self.output_tokens == 1:
            self.first_token_at = now
        if not self.answer.met_stop:
            return [emit]
        self._finish = self.answer.ending()
        return [emit, *self._stop(now)]

    def run_finished(
        self, reason: "FinishReason.ValueType", tokens: int, cached: int, times: RunTimes, now: float
    ) -> list[Effect]:
        self.cached_prompt_tokens = min(cached, self.prompt_tokens)
        if self.state is State.STOPPING:
            return self._receipt(now, tokens=tokens, times=times)
        if self.state is not State.RUNNING:
            return []
        self._close_run(times, now)
        return [*self.answer.rest(), *self._finished(Finish(reason, ""))]

    def stopped(self, tokens: int, kv_blocks_freed: int, times: RunTimes, now: float) -> list[Effect]:
        if self.state is State.STOPPING:
            return self._receipt(now, tokens=tokens, kv_blocks_freed=kv_blocks_freed, times=times)
        return self._run_lost(now, died=False) if self.state is State.RUNNING else []

    def run_refused(self, error: PenstockError, now: float, *, never_ran: bool = False) -> list[Effect]:
        if self.state is State.STOPPING:
            return self._receipt(now)
        if self.state is not State.RUNNING:
            return []
        if error.code in AGAIN:
            return self._run_lost(now, died=error.reason == "ENGINE_DIED", never_ran=never_ran)
        return [*self._told(Fail(error)), *self._end("failed")]

    def worker_lost(self, now: float, *, died: bool) -> list[Effect]:
        """The stream to the worker is gone; `died`: not on purpose."""
        if self.state is State.STOPPING:
            return self._receipt(now)
        if self.state not in (State.LEASED, State.RUNNING):
            return []
        return self._run_lost(now, died=died and self.state is State.RUNNING)

    # ------------------------------------------------------------------------------------------------ from the outside

    def client_left(self, now: float) -> list[Effect]:
        """The client cancelled; idempotent, and too late once the answer's end is known."""
        if self._is_answered or self.state is State.STOPPING:
            return []
        self.left_at = now
        self.outcome = "cancelled"
        if self.state is State.RUNNING:
            return self._stop(now)
        return self._drop(Cancelled(self.output_tokens, 0, 0.0, has_receipt=False), now)

    def fail(self, error: PenstockError, now: float) -> list[Effect]:
        """End in an error that arose on this side: a deadline, a prompt that cannot be, a client that does not read."""
        if self._is_answered or self.state is State.STOPPING:
            return []
        self.outcome = "failed"
        if self.state is State.RUNNING:
            return [*self._told(Fail(error)), *self._stop(now)]
        return self._drop(Fail(error), now)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due at `wake_at`; harmless before."""
        if now < self.wake_at or self.is_done:
            return []
        if now > self.wake_at + LATE and not self._listens and (now < self.deadline or self.state is State.STOPPING):
            self._listens, self.wake_at = True, now + LATE
            return []
        if self.state is State.STOPPING:
            return self._receipt(now)
        if self._is_answered:  # auth never said whether it granted; the reservation lapses by itself
            self._go(State.DONE)
            return []
        if now >= self.deadline:
            return self.fail(DeadlineExceeded("the answer was not complete at its deadline"), now)
        if now >= self._give_up_at:
            return self._give_up(now)
        return self._enqueue()

    # -------------------------------------------------------------------------------------------------------- inside

    def _go(self, state: State, *, give_up_at: float = math.inf, enqueue_at: float = math.inf) -> None:
        self.state, self._give_up_at, self._enqueue_at = state, give_up_at, enqueue_at
        deadline = math.inf if self._is_answered else self.deadline
        self.wake_at = math.inf if state is State.DONE else min(deadline, give_up_at, enqueue_at)
        self._listens = False

    def _accept(self) -> list[Effect]:
        first, self._is_accepted = not self._is_accepted, True
        return [Accept()] if first else []

    def _enqueue(self) -> list[Effect]:
        self._go(State.QUEUED, give_up_at=self._give_up_at if self.state is State.QUEUED else math.inf)
        return [Enqueue()]

    def _give_up(self, now: float) -> list[Effect]:
        if self.state is State.LEASED:
            return [Withdraw(), *self._run_lost(now, died=False)]
        retry_after = self._limits.patience / 10
        if self.state is State.RESERVING:
            return self.fail(_lost("auth does not answer", "AUTH_LOST", retry_after), now)
        return self.fail(_lost("no queue can be reached", "QUEUE_LOST", retry_after), now)

    def _run_lost(self, now: float, *, died: bool, never_ran: bool = False) -> list[Effect]:
        """Go back to the queue with what was emitted; the next run continues with the same text."""
        if self._run:
            self._run.lose(self.timeline, now)
        self.losses.note(self.worker_id, now, died=died, never_ran=never_ran)
        if finish := self.answer.ending():
            return [*self.answer.rest(), *self._finished(finish)]
        if self.losses.count >= self._limits.max_attempts:
            text = f"{self.losses.count} runs were lost with their workers; the same request may succeed later"
            return [*self._told(Fail(Aborted(text, reason="ATTEMPTS_EXHAUSTED"))), *self._end("failed")]
        self.attempt += 1
        if self.losses.refusals > 1:  # its scheduler may be the last to hear of what ails the worker
            self._go(State.QUEUED, enqueue_at=now + self._limits.retry)
            return []
        return self._enqueue()

    def _stop(self, now: float) -> list[Effect]:
        self.state, self._listens = State.STOPPING, False
        self.wake_at = now + self._limits.receipt_timeout
        return [CancelRun()]

    def _receipt(
        self, now: float, *, tokens: int | None = None, kv_blocks_freed: int = 0, times: RunTimes | None = None
    ) -> list[Effect]:
        """The run is over for certain, or its worker is not there to say so (no `tokens`, no `times`)."""
        self._close_run(times or RunTimes(), now)
        if self._finish:
            return self._finished(self._finish)
        made = self.output_tokens if tokens is None or not self._run else self._run.base + tokens
        told: list[Effect] = []
        if not self._is_answered:
            told = self._told(Cancelled(made, kv_blocks_freed, now - self.left_at, tokens is not None))
        return [*told, *self._end(self.outcome, made)]

    def _close_run(self, times: RunTimes, now: float) -> None:
        if self._run:
            self._run.close(self.timeline, times, self.last_token_at, now)

    def _drop(self, ending: Effect, now: float) -> list[Effect]:
        """End what does not run."""
        told = self._told(ending)
        if self.state is State.RESERVING:  # what auth grants yet has to be given back when it comes
            self._go(State.RESERVING, give_up_at=now + self._limits.patience)
            return told
        if self.state is State.TOKENIZING:
            self._go(State.DONE)
            return told
        return [Withdraw(), *told, *self._end(self.outcome)]

    def _told(self, ending: Effect) -> list[Effect]:
        assert not self._is_answered, "an answer has one ending"
        self._is_answered = True
        return [ending]

    def _finished(self, finish: Finish) -> list[Effect]:
        outcome = "length" if finish.reason == FINISH_REASON_LENGTH else "stop"
        return [*self._told(finish), *self._end(outcome)]

    def _end(self, outcome: str, output_tokens: int | None = None) -> list[Effect]:
        self.outcome = outcome
        self._go(State.DONE)
        made = self.output_tokens if output_tokens is None else output_tokens
        has_run = made > 0 or (self._run is not None and self._run.has_prefilled)
        return [Settle(self.prompt_tokens if has_run else 0, made, outcome)]


def _lost(text: str, reason: str, retry_after: float) -> Unavailable:
    return Unavailable(f"{text}; retry in {retry_after:g} s", reason=reason, retry_after=retry_after)
