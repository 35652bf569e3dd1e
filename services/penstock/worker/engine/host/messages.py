"""What the worker's two processes say to each other: plain values, pickled, one message per step outwards."""

from collections.abc import Mapping
from typing import NamedTuple

from penstock.worker.engine.interface import Capacity, SequenceSpec, StepResult
from penstock.worker.engine.model_card import ModelCard


class Add(NamedTuple):
    """Front to engine: run this. A refusal comes as `Refused`, anything else in steps."""

    spec: SequenceSpec


class Cancel(NamedTuple):
    """Front to engine: let go. The receipt is in the next step; none comes when it had ended already."""

    seq_id: int


class EngineReady(NamedTuple):
    """Engine to front, once, first."""

    card: ModelCard
    capacity: Capacity


class StepCompleted(NamedTuple):
    """Engine to front, after each step."""

    result: StepResult
    capacity: Capacity
    duration_s: float
    ended_at: float  # Unix s; what it made, it made before: the front may hear of it later


class AddRejected(NamedTuple):
    """Engine to front: an `Add` that the engine knows nothing of any more. Always the caller's to mend."""

    seq_id: int
    reason: str
    message: str
    metadata: Mapping[str, str]


class EngineFatal(NamedTuple):
    """Engine to front, last: it cannot start or go on."""

    message: str
