"""One run on this worker: a START and all that came of it."""

import math
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import NamedTuple

from penstock.worker.engine.interface import SequenceSpec
from penstock.worker.runs.leases import LeaseGrant

NO_STREAM = -1  # a stream that there never is


class StopReason(Enum):
    """Why a run is being taken out of the engine before its own end."""

    CANCEL = auto()  # the edge said so and gets a receipt
    DEADLINE = auto()
    REVOKED = auto()  # its scheduler took the lease back
    STREAM_LOST = auto()
    SUPERSEDED = auto()  # its handle was used again, so no frame can name it any more

    @property
    def is_unreported(self) -> bool:
        return self in (StopReason.STREAM_LOST, StopReason.SUPERSEDED)


class RunTimes(NamedTuple):
    """Where a run's time on the worker went, in s; what it never came to is 0."""

    wait_s: float
    prefill_s: float
    decode_s: float


class LeaseProgress(NamedTuple):
    """What a lease was served so far."""

    lease_id: str
    prompt_tokens: int  # computed, for the first time
    output_tokens: int
    first_token_after_s: float | None = None  # s from its arrival; None before it

    @property
    def has_tokens(self) -> bool:
        return bool(self.prompt_tokens or self.output_tokens)


@dataclass(slots=True, eq=False, kw_only=True)
class Run:
    """Changed by `RunBook` alone. All moments are Unix seconds."""

    stream: int  # of which edge
    handle: int  # its name on that stream
    lease_id: str
    ticket_id: str
    spec: SequenceSpec
    arrived_at: float
    deadline: float = math.inf
    traceparent: str = ""
    fingerprint: int = 0  # the same for all requests that would crash an engine alike; 0: unknown
    is_orphan: bool = False  # runs for nobody, so that it is known whether it crashes engines
    output: list[int] = field(default_factory=list)  # tokens made, sent or not
    original_spec: SequenceSpec | None = None  # as it came, where `spec` is what is left of it after a crash
    cached_tokens: int = 0  # of the prompt
    prefilled_tokens: int = 0  # tokens of the prompt that were computed, each counted once
    last_reported: LeaseProgress | None = None  # what its scheduler has heard
    attempt: int = 0  # as its lease was announced, like the next
    queue_id: str = ""
    admitted_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    stop_reason: StopReason | None = None
    stop_requested_at: float | None = (
        None  # when it was first to be taken out; once the engine has been told, when it was
    )
    released_at: float | None = None  # when the engine freed what it had, as it began a step without it
    steps_after_stop: int = 0  # that ended after `asked_at`, before the one without it
    has_reached_engine: bool = False  # to an engine
    wasted_tokens: int = 0  # tokens made in steps that ended after that

    def __repr__(self) -> str:
        state = f"ending by {self.stop_reason.name}" if self.stop_reason else f"{self.tokens} tokens"
        return f"<Run {self.seq_id} of stream {self.stream}, handle {self.handle}: {state}>"

    @property
    def seq_id(self) -> int:
        return self.spec.seq_id

    @property
    def tokens(self) -> int:
        """Tokens made, sent or not."""
        return len(self.output)

    @property
    def max_total_tokens(self) -> int:
        """Most tokens it can come to hold."""
        return len(self.spec.token_ids) + self.spec.max_output_tokens

    def apply_grant(self, grant: LeaseGrant) -> None:
        """Run as its lease was announced: an edge has no say in what is urgent."""
        self.attempt, self.queue_id = grant.attempt, grant.queue_id
        self.spec = replace(self.spec, is_express=grant.is_express)

    def on_admitted(self, cached_tokens: int, admitted_at: float) -> None:
        if self.admitted_at is None:  # a preempted run is admitted again; its wait was over with the first time
            # The step began before it was known that the run had arrived in time for it.
            self.admitted_at, self.cached_tokens = max(admitted_at, self.arrived_at), cached_tokens

    def record_prefill(self, tokens: int) -> None:
        """Note computed tokens; what is computed again after a preemption or a crash is not served again."""
        asked = self.original_spec or self.spec
        self.prefilled_tokens = min(self.prefilled_tokens + tokens, len(asked.token_ids) - self.cached_tokens)

    @property
    def progress(self) -> LeaseProgress:
        first = None if self.first_token_at is None else self.first_token_at - self.arrived_at
        return LeaseProgress(self.lease_id, self.prefilled_tokens, self.tokens, first)

    def restart_as(self, seq_id: int) -> None:
        """Have what is left done by another engine, under a new number."""
        self.original_spec = self.original_spec or self.spec
        self.spec = replace(
            self.original_spec,
            seq_id=seq_id,
            token_ids=[*self.original_spec.token_ids, *self.output],
            emitted=self.original_spec.emitted + self.tokens,
            max_output_tokens=self.original_spec.max_output_tokens - self.tokens,
        )

    def make_orphan(self) -> "Run":
        """What goes on being tried when nobody waits for its answer any more."""
        ghost = replace(
            self, stream=NO_STREAM, handle=0, lease_id=f"{self.lease_id} on trial", output=list(self.output)
        )
        ghost.is_orphan, ghost.deadline, ghost.stop_reason, ghost.stop_requested_at = True, math.inf, None, None
        return ghost

    def add_token(self, token: int, step_ended_at: float) -> None:
        """`at`: when the step ended that made it."""
        if not self.tokens:
            self.record_prefill(len(self.spec.token_ids))  # whatever the engine counts as a decode
        self.output.append(token)
        self.last_token_at = step_ended_at
        if self.first_token_at is None:
            self.first_token_at = step_ended_at
        self.wasted_tokens += self.stop_requested_at is not None and step_ended_at > self.stop_requested_at

    def times(self, now: float) -> RunTimes:
        """The three add up to the time from arrival to the last token, or to `now` for a run that had none."""
        admitted = now if self.admitted_at is None else self.admitted_at
        first = now if self.first_token_at is None else self.first_token_at
        last = first if self.last_token_at is None else self.last_token_at
        return RunTimes(wait_s=admitted - self.arrived_at, prefill_s=first - admitted, decode_s=last - first)
