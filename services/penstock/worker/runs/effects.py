"""Effects of the run table, which `EffectDispatcher` performs in order."""

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
    """One step's tokens for one edge stream, as parallel lists.

    Each token has the same number of `top_token_ids` and `top_logprobs`, as one group is of runs that request the same.
    """

    stream: int
    step: int
    handles: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    has_logprobs: bool = False  # whether any of these runs asked for them
    top_token_ids: list[int] = field(default_factory=list)  # the likeliest tokens of each token's position
    top_logprobs: list[float] = field(default_factory=list)

    def add(self, run: Run, token: int, index: int, logprob: float) -> None:
        self.handles.append(run.handle)
        self.token_ids.append(token)
        self.indexes.append(index)
        self.logprobs.append(logprob)
        self.has_logprobs |= run.spec.sampling.logprobs


RunOutcome: TypeAlias = SequenceFinished | SequenceCancelled | PenstockError


@dataclass(frozen=True, slots=True)
class RunEnded:
    """A run has ended: it finished, the engine released it, or it failed."""

    run: Run
    outcome: RunOutcome
    at: float  # s of the worker's clock
    step: int  # the last engine step that may have worked on it
    is_reported: bool  # whether its edge receives the outcome; False if its stream or its handle is gone


@dataclass(frozen=True, slots=True)
class LeaseStarted:
    lease_id: str


@dataclass(frozen=True, slots=True)
class LeasesReleased:
    lease_ids: tuple[str, ...]
    progress: tuple[LeaseProgress, ...] = ()  # final totals of those leases that computed any token


Effect: TypeAlias = AddSequence | CancelSequence | StepTokens | RunEnded | LeaseStarted | LeasesReleased


def outcome_of(run: Run, outcome: SequenceFinished | SequenceCancelled) -> RunOutcome:
    """Return the outcome that a run's edge receives when the engine has ended the run.

    A run that was stopped never counts as finished, because its last tokens were withheld.
    """
    if run.stop_reason is StopReason.DEADLINE:
        return errors.deadline_passed()
    if run.stop_reason is StopReason.REVOKED:
        return errors.lease_revoked(run.lease_id)
    if run.stop_reason and isinstance(outcome, SequenceFinished):
        # The run had freed its blocks by itself before the cancel arrived.
        return SequenceCancelled(run.seq_id, outcome.output_tokens, 0)
    return outcome


def merge_releases(effects: list[Effect]) -> list[Effect]:
    """Merge all released leases into one effect, the last, so that the scheduler receives one frame."""
    released = [effect for effect in effects if isinstance(effect, LeasesReleased)]
    if not released:
        return effects
    others = [effect for effect in effects if not isinstance(effect, LeasesReleased)]
    lease_ids = tuple(each for effect in released for each in effect.lease_ids)
    return [*others, LeasesReleased(lease_ids, tuple(each for effect in released for each in effect.progress))]
