"""What the run book wants done: the front performs these in order, and does nothing else of its own accord."""

from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.chassis.errors import PenstockError
from penstock.worker.engine.interface import SequenceCancelled, SequenceFinished, SequenceSpec
from penstock.worker.runs import errors
from penstock.worker.runs.run import LeaseProgress, Run, StopReason


@dataclass(frozen=True, slots=True)
class AddSequence:
    spec: SequenceSpec


@dataclass(frozen=True, slots=True)
class CancelSequence:
    seq_id: int


@dataclass(slots=True)
class StepTokens:
    """One step's tokens for one edge stream, as parallel lists."""

    stream: int
    step: int
    handles: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    has_logprobs: bool = False  # whether any of these runs asked for them

    def add(self, run: Run, token: int, index: int, logprob: float) -> None:
        self.handles.append(run.handle)
        self.token_ids.append(token)
        self.indexes.append(index)
        self.logprobs.append(logprob)
        self.has_logprobs |= run.spec.sampling.logprobs


RunOutcome: TypeAlias = SequenceFinished | SequenceCancelled | PenstockError


@dataclass(frozen=True, slots=True)
class RunEnded:
    """A run is over: of its own accord, let go by the engine, or in an error.

    `answers` says whether its edge is to hear of it: not when the stream or the handle is gone.
    """

    run: Run
    outcome: RunOutcome
    at: float  # Unix s
    step: int  # last engine step that could have worked on it
    is_reported: bool


@dataclass(frozen=True, slots=True)
class LeaseStarted:
    lease_id: str


@dataclass(frozen=True, slots=True)
class LeasesReleased:
    lease_ids: tuple[str, ...]
    progress: tuple[LeaseProgress, ...] = ()  # in all, those among them that were served anything


Effect: TypeAlias = AddSequence | CancelSequence | StepTokens | RunEnded | LeaseStarted | LeasesReleased


def outcome_of(run: Run, outcome: SequenceFinished | SequenceCancelled) -> RunOutcome:
    """What a run's edge hears when the engine is done with it.

    The last tokens of a run that was to end were held back, so it has not finished, whatever the engine says.
    """
    if run.stop_reason is StopReason.DEADLINE:
        return errors.deadline_passed()
    if run.stop_reason is StopReason.REVOKED:
        return errors.lease_revoked(run.lease_id)
    if run.stop_reason and isinstance(
        outcome, SequenceFinished
    ):  # it freed its blocks by itself, before the cancel got there
        return SequenceCancelled(run.seq_id, outcome.output_tokens, 0)
    return outcome


def merge_releases(effects: list[Effect]) -> list[Effect]:
    """One frame tells the scheduler all leases that ended together."""
    released = [effect for effect in effects if isinstance(effect, LeasesReleased)]
    if not released:
        return effects
    others = [effect for effect in effects if not isinstance(effect, LeasesReleased)]
    lease_ids = tuple(each for effect in released for each in effect.lease_ids)
    return [*others, LeasesReleased(lease_ids, tuple(each for effect in released for each in effect.progress))]
