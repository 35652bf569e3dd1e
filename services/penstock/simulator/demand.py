"""What one tenant asks for over time: arrivals and lengths together, drawn or read from a trace."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol

from penstock.simulator.arrivals import Arrivals
from penstock.simulator.lengths import Lengths


class Ask(NamedTuple):
    """One request: when, and how long its prompt and its answer are in tokens."""

    at: float  # s from the start
    prompt: int
    output: int


class Demand(Protocol):
    def asks(self, seed: str, load: float) -> Iterator[Ask]:
        """Yield requests by ascending time; `load` multiplies their rate."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Arrivals and lengths have generators of their own, so that a change of one leaves the other as it was."""

    arrivals: Arrivals
    prompt: Lengths
    output: Lengths

    def asks(self, seed: str, load: float) -> Iterator[Ask]:
        prompts, outputs = Random(f"{seed}/prompt"), Random(f"{seed}/output")
        for at in self.arrivals.times(Random(f"{seed}/arrivals"), load):
            yield Ask(at, self.prompt.draw(prompts), self.output.draw(outputs))


@dataclass(frozen=True, slots=True)
class Phased:
    """Lengths change with the time of day; each entry holds from its time on."""

    arrivals: Arrivals
    phases: Sequence[tuple[float, Lengths, Lengths]]

    def asks(self, seed: str, load: float) -> Iterator[Ask]:
        lengths, place = Random(f"{seed}/lengths"), 0
        for at in self.arrivals.times(Random(f"{seed}/arrivals"), load):
            while place + 1 < len(self.phases) and self.phases[place + 1][0] <= at:
                place += 1
            _, prompt, output = self.phases[place]
            yield Ask(at, prompt.draw(lengths), output.draw(lengths))


@dataclass(frozen=True, slots=True)
class Traced:
    """Requests as they came somewhere, faster by `load`."""

    recorded: Sequence[Ask]

    def asks(self, seed: str, load: float) -> Iterator[Ask]:
        for ask in self.recorded:
            yield Ask(ask.at / load, ask.prompt, ask.output)
