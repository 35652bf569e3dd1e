"""What one tenant asks for over time: arrivals and lengths together, drawn or read from a trace."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol

from penstock.simulator.traffic.arrivals import Arrivals
from penstock.simulator.traffic.lengths import Lengths
from penstock.simulator.traffic.shared_prefixes import NOTHING, Beginning, SharedTexts


class Ask(NamedTuple):
    """One request: when, how long its prompt and its answer are in tokens, and what the prompt has in common."""

    at: float  # s from the start
    prompt: int
    output: int
    beginning: Beginning = NOTHING


class Demand(Protocol):
    def asks(self, seed: str, load: float) -> Iterator[Ask]:
        """Yield requests by ascending time; `load` multiplies their rate."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Arrivals and lengths have generators of their own, so that a change of one leaves the other as it was."""

    arrivals: Arrivals
    prompt: Lengths
    output: Lengths
    shared: SharedTexts | None = None

    def asks(self, seed: str, load: float) -> Iterator[Ask]:
        prompts, outputs, texts = (Random(f"{seed}/{name}") for name in ("prompt", "output", "texts"))
        for at in self.arrivals.times(Random(f"{seed}/arrivals"), load):
            beginning = self.shared.draw(texts) if self.shared else NOTHING
            yield Ask(at, self.prompt.draw(prompts), self.output.draw(outputs), beginning)


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

    @property
    def shares_prefixes(self) -> bool:
        return any(ask.beginning.names for ask in self.recorded)

    def asks(self, seed: str, load: float) -> Iterator[Ask]:
        for ask in self.recorded:
            yield ask._replace(at=ask.at / load)
