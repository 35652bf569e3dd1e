"""The plan of one step, which the batch makes and a runner computes."""

from dataclasses import dataclass, field

from penstock.worker.engine.batching.sequence import Sequence
from penstock.worker.engine.interface import StepResult


@dataclass(slots=True, eq=False)  # not frozen, which would take three times as long to construct
class Slice:
    """The part of one sequence that a step computes: `count` positions from `start`."""

    sequence: Sequence
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def is_sampled(self) -> bool:
        return self.end == len(self.sequence.ids)


@dataclass(slots=True)
class StepPlan:
    decodes: list[Slice]
    prefills: list[Slice]
    result: StepResult  # filled as far as it is known before the computation
    sampled: list[Sequence] = field(init=False)  # sequences that get a token, in the order that `commit` expects

    def __post_init__(self) -> None:
        # Each decode computes the last known token of its sequence, so each gets a new one.
        prefilled = [part.sequence for part in self.prefills if part.is_sampled]
        self.sampled = [part.sequence for part in self.decodes] + prefilled

    @property
    def slices(self) -> list[Slice]:
        return self.decodes + self.prefills
