"""What one step is to compute: the batch draws it up, runners carry it out."""

from dataclasses import dataclass, field

from penstock.worker.engine.batching.sequence import Sequence
from penstock.worker.engine.interface import StepResult


@dataclass(slots=True, eq=False)  # not frozen: that takes three times as long to make
class Slice:
    """The part of one sequence that a step computes: `count` positions from `start` on."""

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
    result: StepResult  # what is known of it before the computing
    sampled: list[Sequence] = field(init=False)  # get a token, in the order in which `commit` expects the tokens

    def __post_init__(self) -> None:
        # A decode computes the last token there is, so that each gets another.
        prefilled = [part.sequence for part in self.prefills if part.is_sampled]
        self.sampled = [part.sequence for part in self.decodes] + prefilled

    @property
    def slices(self) -> list[Slice]:
        return self.decodes + self.prefills
