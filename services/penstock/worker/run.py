"""One run on this worker: a START and all that came of it."""

import math
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import NamedTuple

from penstock.worker.engine.interface import SequenceSpec
from penstock.worker.leases import Grant

NOBODY = -1  # a stream that there never is


class Ending(Enum):
    """Why a run is being taken out of the engine before its own end."""

    CANCEL = auto()  # the edge said so and gets a receipt
    DEADLINE = auto()
    REVOKED = auto()  # its scheduler took the lease back
    STREAM_LOST = auto()
    SUPERSEDED = auto()  # its handle was used again, so no frame can name it any more

    @property
    def is_silent(self) -> bool:
        return self in (Ending.STREAM_LOST, Ending.SUPERSEDED)


class Times(NamedTuple):
    """Where a run's time on the worker went, in s; what it never came to is 0."""

    wait: float
    prefill: float
    decode: float


class Served(NamedTuple):
    """What a lease was served so far."""

    lease_id: str
    prompt_tokens: int  # computed, for the first time
    output_tokens: int
    first_token_after: float | None = None  # s from its arrival; None before it

    @property
    def is_any(self) -> bool:
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
    is_ghost: bool = False  # runs for nobody, so that it is known whether it crashes engines
    output: list[int] = field(default_factory=list)  # tokens made, sent or not
    asked_for: SequenceSpec | None = None  # as it came, where `spec` is what is left of it after a crash
    cached_tokens: int = 0  # of the prompt
    prefilled: int = 0  # tokens of the prompt that were computed, each counted once
    told: Served | None = None  # what its scheduler has heard
    attempt: int = 0  # as its lease was announced, like the next
    queue_id: str = ""
    admitted_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    ending: Ending | None = None
    asked_at: float | None = None  # when it was first to be taken out; once the engine has been told, when it was
    let_go_at: float | None = None  # when the engine freed what it had, as it began a step without it
    steps_since_asked: int = 0  # that ended after `asked_at`, before the one without it
    was_given: bool = False  # to an engine
    wasted: int = 0  # tokens made in steps that ended after that

    def __repr__(self) -> str:
        state = f"ending by {self.ending.name}" if self.ending else f"{self.tokens} tokens"
        return f"<Run {self.seq_id} of stream {self.stream}, handle {self.handle}: {state}>"

    @property
    def seq_id(self) -> int:
        return self.spec.seq_id

    @property
    def tokens(self) -> int:
        """Tokens made, sent or not."""
        return len(self.output)

    @property
    def final_tokens(self) -> int:
        """Most tokens it can come to hold."""
        return len(self.spec.token_ids) + self.spec.max_output_tokens

    def hold(self, grant: Grant) -> None:
        """Run as its lease was announced: an edge has no say in what is urgent."""
        self.attempt, self.queue_id = grant.attempt, grant.queue_id
        self.spec = replace(self.spec, is_urgent=grant.is_urgent)

    def admit(self, cached_tokens: int, at: float) -> None:
        if self.admitted_at is None:  # a preempted run is admitted again; its wait was over with the first time
            # The step began before it was known that the run had arrived in time for it.
            self.admitted_at, self.cached_tokens = max(at, self.arrived_at), cached_tokens

    def prefill(self, tokens: int) -> None:
        """Note computed tokens; what is computed again after a preemption or a crash is not served again."""
        asked = self.asked_for or self.spec
        self.prefilled = min(self.prefilled + tokens, len(asked.token_ids) - self.cached_tokens)

    @property
    def served(self) -> Served:
        first = None if self.first_token_at is None else self.first_token_at - self.arrived_at
        return Served(self.lease_id, self.prefilled, self.tokens, first)

    def start_over(self, seq_id: int) -> None:
        """Have what is left done by another engine, under a new number."""
        self.asked_for = self.asked_for or self.spec
        self.spec = replace(
            self.asked_for,
            seq_id=seq_id,
            token_ids=[*self.asked_for.token_ids, *self.output],
            emitted=self.asked_for.emitted + self.tokens,
            max_output_tokens=self.asked_for.max_output_tokens - self.tokens,
        )

    def ghost(self) -> "Run":
        """What goes on being tried when nobody waits for its answer any more."""
        ghost = replace(self, stream=NOBODY, handle=0, lease_id=f"{self.lease_id} on trial", output=list(self.output))
        ghost.is_ghost, ghost.deadline, ghost.ending, ghost.asked_at = True, math.inf, None, None
        return ghost

    def add_token(self, token: int, at: float) -> None:
        """`at`: when the step ended that made it."""
        if not self.tokens:
            self.prefill(len(self.spec.token_ids))  # whatever the engine counts as a decode
        self.output.append(token)
        self.last_token_at = at
        if self.first_token_at is None:
            self.first_token_at = at
        self.wasted += self.asked_at is not None and at > self.asked_at

    def times(self, now: float) -> Times:
        """The three add up to the time from arrival to the last token, or to `now` for a run that had none."""
        admitted = now if self.admitted_at is None else self.admitted_at
        first = now if self.first_token_at is None else self.first_token_at
        last = first if self.last_token_at is None else self.last_token_at
        return Times(wait=admitted - self.arrived_at, prefill=first - admitted, decode=last - first)
