"""One run on this worker: a START, its tokens and its times."""

import math
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import NamedTuple

from penstock.worker.engine.interface import SequenceSpec
from penstock.worker.runs.leases import LeaseGrant

MAX_PREEMPTIONS = 16  # of one run, whose times are kept
NO_STREAM = -1  # a number that no edge stream has


class StopReason(Enum):
    """The reason why a run is stopped before it has finished."""

    CANCEL = auto()  # the edge cancelled it and receives a RunCancelled
    DEADLINE = auto()
    REVOKED = auto()  # the scheduler revoked the lease
    STREAM_LOST = auto()
    SUPERSEDED = auto()  # the edge reused its handle, so frames can no longer name it

    @property
    def is_unreported(self) -> bool:
        return self in (StopReason.STREAM_LOST, StopReason.SUPERSEDED)


class RunTimes(NamedTuple):
    """Seconds that a run spent in each phase; 0 for a phase that it never reached."""

    wait_s: float
    prefill_s: float
    decode_s: float


class LeaseProgress(NamedTuple):
    """Tokens computed under a lease so far."""

    lease_id: str
    prompt_tokens: int  # computed, each counted once
    output_tokens: int
    first_token_after_s: float | None = None  # s from its arrival; None before it

    @property
    def has_tokens(self) -> bool:
        return bool(self.prompt_tokens or self.output_tokens)


@dataclass(slots=True, eq=False, kw_only=True)
class Run:
    """A run, changed by `RunTable` alone. All times are seconds of the worker's clock."""

    stream: int  # number of the edge's stream
    handle: int  # the run's number on that stream
    lease_id: str
    ticket_id: str
    spec: SequenceSpec
    arrived_at: float
    model: str = ""  # key of the model for which the edge has tokenized the prompt
    deadline: float = math.inf
    traceparent: str = ""
    request_id: str = ""  # of the client, for logs
    fingerprint: int = 0  # equal for all requests that would crash an engine in the same way; 0: unknown
    is_orphan: bool = False  # has no edge; continues only to find out whether it crashes the engine
    output: list[int] = field(default_factory=list)  # tokens made, sent or not
    original_spec: SequenceSpec | None = None  # as received, if `spec` is the remainder after an engine crash
    cached_tokens: int = 0  # tokens of the prompt found in the prefix cache
    prefilled_tokens: int = 0  # tokens of the prompt that were computed, each counted once
    attempt: int = 0  # from the lease's announcement, like `queue_id`
    queue_id: str = ""
    admitted_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    last_wanted_at: float | None = None  # of the last token before `stop_requested_at`
    preempted_at: tuple[float, ...] = ()  # begins of the steps in which it lost its blocks, the latest ones
    stop_reason: StopReason | None = None
    stop_requested_at: float | None = None  # when the stop was requested, then when the cancel was sent to the engine
    released_at: float | None = None  # when the engine freed its blocks, as it began a step without it
    steps_after_stop: int = 0  # steps that ended after `stop_requested_at` and before the first one without it
    has_reached_engine: bool = False
    wasted_tokens: int = 0  # tokens made in steps that ended after `stop_requested_at`

    def __repr__(self) -> str:
        state = f"stopping by {self.stop_reason.name}" if self.stop_reason else f"{self.tokens} tokens"
        return f"<Run {self.seq_id} of stream {self.stream}, handle {self.handle}: {state}>"

    @property
    def seq_id(self) -> int:
        return self.spec.seq_id

    @property
    def tokens(self) -> int:
        """Number of tokens made, sent or not."""
        return len(self.output)

    @property
    def max_total_tokens(self) -> int:
        """Maximum number of prompt and output tokens together."""
        return len(self.spec.token_ids) + self.spec.max_output_tokens

    def apply_grant(self, grant: LeaseGrant) -> None:
        """Adopt the terms of the lease. The scheduler, not the edge, decides which runs are prefilled first."""
        self.attempt, self.queue_id = grant.attempt, grant.queue_id
        self.spec = replace(self.spec, prefill_rank=grant.prefill_rank)

    def on_admitted(self, cached_tokens: int, admitted_at: float) -> None:
        if self.admitted_at is None:  # a preempted run is admitted again; its wait ended with the first admission
            # A run may arrive after the start of the step that admits it.
            self.admitted_at, self.cached_tokens = max(admitted_at, self.arrived_at), cached_tokens

    def record_prefill(self, tokens: int) -> None:
        """Count computed prompt tokens. Tokens recomputed after a preemption or a crash do not count again."""
        original = self.original_spec or self.spec
        self.prefilled_tokens = min(self.prefilled_tokens + tokens, len(original.token_ids) - self.cached_tokens)

    @property
    def progress(self) -> LeaseProgress:
        first = None if self.first_token_at is None else self.first_token_at - self.arrived_at
        return LeaseProgress(self.lease_id, self.prefilled_tokens, self.tokens, first)

    def restart_as(self, seq_id: int) -> None:
        """Turn the spec into the remainder of the run, under a new number, for another engine."""
        self.original_spec = self.original_spec or self.spec
        self.spec = replace(
            self.original_spec,
            seq_id=seq_id,
            token_ids=[*self.original_spec.token_ids, *self.output],
            emitted=self.original_spec.emitted + self.tokens,
            max_output_tokens=self.original_spec.max_output_tokens - self.tokens,
        )

    def make_orphan(self) -> "Run":
        """Return a copy without edge, lease and deadline, which continues in quarantine."""
        lease_id = f"{self.lease_id} in quarantine"
        orphan = replace(self, stream=NO_STREAM, handle=0, lease_id=lease_id, output=list(self.output))
        orphan.is_orphan, orphan.deadline, orphan.stop_reason, orphan.stop_requested_at = True, math.inf, None, None
        return orphan

    def add_token(self, token: int, step_ended_at: float) -> None:
        if not self.tokens:
            self.record_prefill(len(self.spec.token_ids))  # the engine counts the last prompt token as a decode
        self.output.append(token)
        self.last_token_at = step_ended_at
        if self.first_token_at is None:
            self.first_token_at = step_ended_at
        self.wasted_tokens += self.stop_requested_at is not None and step_ended_at > self.stop_requested_at

    def times(self, now: float) -> RunTimes:
        """The sum of the three is the time from arrival to the last token, or to `now` if there is no token."""
        admitted = now if self.admitted_at is None else self.admitted_at
        first = now if self.first_token_at is None else self.first_token_at
        last = first if self.last_token_at is None else self.last_token_at
        return RunTimes(wait_s=admitted - self.arrived_at, prefill_s=first - admitted, decode_s=last - first)
