"""Length distributions of prompts and answers, in tokens. Pure, except for the generator that is passed in."""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Protocol


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
