"""What one tenant asks for over time: arrivals and lengths together, drawn or read from a trace."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol

from penstock.simulator.traffic.arrivals import ArrivalProcess
from penstock.simulator.traffic.lengths import LengthDistribution
from penstock.simulator.traffic.shared_prefixes import NO_PREFIX, PrefixPool, SharedPrefix


class OfferedRequest(NamedTuple):
    """One request: when, how long its prompt and its answer are in tokens, and what the prompt has in common."""

    at: float  # s from the start
    prompt_tokens: int
    output_tokens: int
    prefix: SharedPrefix = NO_PREFIX


class Demand(Protocol):
    def requests(self, seed: str, load: float) -> Iterator[OfferedRequest]:
        """Yield requests by ascending time; `load` multiplies their rate."""


@dataclass(frozen=True, slots=True)
class SampledDemand:
    """Arrivals and lengths have generators of their own, so that a change of one leaves the other as it was."""

    arrivals: ArrivalProcess
    prompt_lengths: LengthDistribution
    output_lengths: LengthDistribution
    prefix_pool: PrefixPool | None = None

    def requests(self, seed: str, load: float) -> Iterator[OfferedRequest]:
        prompts, outputs, texts = (Random(f"{seed}/{name}") for name in ("prompt", "output", "texts"))
        for at in self.arrivals.times(Random(f"{seed}/arrivals"), load):
            beginning = self.prefix_pool.draw(texts) if self.prefix_pool else NO_PREFIX
            yield OfferedRequest(at, self.prompt_lengths.draw(prompts), self.output_lengths.draw(outputs), beginning)


@dataclass(frozen=True, slots=True)
class PhasedDemand:
    """Lengths change with the time of day; each entry holds from its time on."""

    arrivals: ArrivalProcess
    phases: Sequence[tuple[float, LengthDistribution, LengthDistribution]]

    def requests(self, seed: str, load: float) -> Iterator[OfferedRequest]:
        lengths, place = Random(f"{seed}/lengths"), 0
        for at in self.arrivals.times(Random(f"{seed}/arrivals"), load):
            while place + 1 < len(self.phases) and self.phases[place + 1][0] <= at:
                place += 1
            _, prompt, output = self.phases[place]
            yield OfferedRequest(at, prompt.draw(lengths), output.draw(lengths))


@dataclass(frozen=True, slots=True)
class TraceDemand:
    """Requests as they came somewhere, faster by `load`."""

    recorded_requests: Sequence[OfferedRequest]

    @property
    def has_shared_prefixes(self) -> bool:
        return any(ask.prefix.piece_ids for ask in self.recorded_requests)

    def requests(self, seed: str, load: float) -> Iterator[OfferedRequest]:
        for ask in self.recorded_requests:
            yield ask._replace(at=ask.at / load)
