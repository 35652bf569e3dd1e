"""Messages between the worker and its engine process: plain values, pickled. The engine sends one per step."""

from collections.abc import Mapping
from typing import NamedTuple

from penstock.worker.engine.interface import Capacity, SequenceSpec, StepResult
from penstock.worker.engine.model_card import ModelCard


class Add(NamedTuple):
    """Worker to engine: run a sequence. An `AddRejected` or the results of steps follow."""

    spec: SequenceSpec


class Cancel(NamedTuple):
    """Worker to engine: cancel a sequence. The receipt is in the next step; none if the sequence has ended already."""

    seq_id: int


class EngineReady(NamedTuple):
    """Engine to worker: the first message, once."""

    card: ModelCard
    capacity: Capacity


class StepCompleted(NamedTuple):
    """Engine to worker, after each step."""

    result: StepResult
    capacity: Capacity
    duration_s: float
    ended_at: float  # s of `time.monotonic`; the worker may receive the message later


class AddRejected(NamedTuple):
    """Engine to worker: an `Add` was rejected for an error of the caller; the engine does not keep the sequence."""

    seq_id: int
    reason: str
    message: str
    metadata: Mapping[str, str]


class EngineFatal(NamedTuple):
    """Engine to worker: the last message of an engine that cannot start or continue."""

    message: str
