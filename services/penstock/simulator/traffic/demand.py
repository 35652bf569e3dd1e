"""Demand: the requests of one tenant over time with their lengths in tokens, sampled or read from a trace."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import NamedTuple, Protocol

from penstock.simulator.traffic.arrivals import ArrivalProcess
from penstock.simulator.traffic.shared_prefixes import NO_PREFIX, PrefixPool, SharedPrefix


class LengthDistribution(Protocol):
    """A distribution over numbers of tokens."""

    def draw(self, rng: Random) -> int: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same length for every request."""

    tokens: int

    def draw(self, rng: Random) -> int:
        return self.tokens


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniform over `low` to `high`, both included."""

    low: int
    high: int

    def draw(self, rng: Random) -> int:
        return rng.randint(self.low, self.high)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Log-normal, clamped to `low` .. `high`; `mean` is the mean in tokens before the clamp."""

    mean: float
    sigma: float  # of the logarithm
    low: int
    high: int

    def draw(self, rng: Random) -> int:
        length = rng.lognormvariate(math.log(self.mean) - self.sigma**2 / 2, self.sigma)
        return min(self.high, max(self.low, round(length)))


@dataclass(slots=True)
class Empirical:
    """An empirical distribution: lengths with their shares."""

    shares: Mapping[int, float]
    _tokens: list[int] = field(init=False)
    _cumulative: list[float] = field(init=False)

    def __post_init__(self) -> None:
        if not self.shares or min(self.shares.values()) < 0 or sum(self.shares.values()) <= 0:
            raise ValueError("an empirical distribution needs shares of at least 0, with a sum above 0")
        self._tokens = list(self.shares)
        self._cumulative = list(accumulate(self.shares.values()))

    def draw(self, rng: Random) -> int:
        place = bisect_left(self._cumulative, rng.random() * self._cumulative[-1])
        return max(1, int(self._tokens[min(place, len(self._tokens) - 1)]))


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
    resolution: float = 0.0  # s; recorded times were rounded down to multiples of it; each seed spreads them over it

    @property
    def has_shared_prefixes(self) -> bool:
        return any(each.prefix.piece_ids for each in self.recorded_requests)

    def requests(self, seed: str, load: float) -> Iterator[OfferedRequest]:
        for request in self._spread(Random(f"{seed}/trace")) if self.resolution else self.recorded_requests:
            yield request._replace(at=request.at / load)

    def _spread(self, rng: Random) -> list[OfferedRequest]:
        spread = (each._replace(at=each.at + self.resolution * rng.random()) for each in self.recorded_requests)
        return sorted(spread, key=lambda each: each.at)
