"""Demand: the requests of one tenant over time, sampled or read from a trace."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol

from penstock.simulator.traffic.arrivals import ArrivalProcess
from penstock.simulator.traffic.lengths import LengthDistribution
from penstock.simulator.traffic.shared_prefixes import NO_PREFIX, PrefixPool, SharedPrefix


class OfferedRequest(NamedTuple):
    """One request of the traffic: arrival time, lengths in tokens, and shared prefix."""

    at: float  # s from the start
    prompt_tokens: int
    output_tokens: int
    prefix: SharedPrefix = NO_PREFIX


class Demand(Protocol):
    """A reproducible sequence of requests."""

    def requests(self, seed: str, load: float) -> Iterator[OfferedRequest]:
        """Yield requests by ascending time; `load` multiplies their rate."""


@dataclass(frozen=True, slots=True)
class SampledDemand:
    """Sampled arrivals and lengths; each has its own generator, so that a change of one does not affect the others."""

    arrivals: ArrivalProcess
    prompt_lengths: LengthDistribution
    output_lengths: LengthDistribution
    prefix_pool: PrefixPool | None = None

    def requests(self, seed: str, load: float) -> Iterator[OfferedRequest]:
        prompts, outputs, texts = (Random(f"{seed}/{name}") for name in ("prompt", "output", "texts"))
        for at in self.arrivals.times(Random(f"{seed}/arrivals"), load):
            prefix = self.prefix_pool.draw(texts) if self.prefix_pool else NO_PREFIX
            yield OfferedRequest(at, self.prompt_lengths.draw(prompts), self.output_lengths.draw(outputs), prefix)


@dataclass(frozen=True, slots=True)
class PhasedDemand:
    """Sampled arrivals with lengths that change over time; each phase holds from its time in s on."""

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
    """Recorded requests, replayed `load` times as fast."""

    recorded_requests: Sequence[OfferedRequest]

    @property
    def has_shared_prefixes(self) -> bool:
        return any(each.prefix.piece_ids for each in self.recorded_requests)

    def requests(self, seed: str, load: float) -> Iterator[OfferedRequest]:
        for request in self.recorded_requests:
            yield request._replace(at=request.at / load)
