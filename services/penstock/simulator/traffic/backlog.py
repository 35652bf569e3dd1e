"""Backlog: the lines of one batch, all of which exist from one time on. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from penstock.simulator.traffic.demand import LengthDistribution, OfferedRequest


@dataclass(frozen=True, slots=True)
class Backlog:
    """One batch. Its lines have no arrivals: the batch replica starts them as fast as the queue takes them."""

    lines: int
    prompt_lengths: LengthDistribution
    output_lengths: LengthDistribution
    at: float = 0.0  # s from the start, at which the batch is created
    window: float = 86_400.0  # s from then until it expires

    def requests(self, seed: str, load: float) -> Iterator[OfferedRequest]:
        """Yield the lines in their order. `load` has no effect, because lines have no rate."""
        prompts, outputs = (Random(f"{seed}/{name}") for name in ("prompt", "output"))
        for _ in range(self.lines):
            yield OfferedRequest(self.at, self.prompt_lengths.draw(prompts), self.output_lengths.draw(outputs))
