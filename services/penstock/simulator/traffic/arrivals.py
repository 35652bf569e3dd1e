"""When requests come: processes that yield times in s from the start, endless unless a trace ends. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol


class ArrivalProcess(Protocol):
    def times(self, rng: Random, load: float) -> Iterator[float]:
        """Yield ascending times; `load` multiplies the rate."""


@dataclass(frozen=True, slots=True)
class RateWindow:
    """The rate is multiplied by `factor` in it: a step, a spike or a silence."""

    start: float
    end: float
    factor: float


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent clients at `rate` per s, times the factors of the windows that hold a moment."""

    rate: float
    windows: Sequence[RateWindow] = ()

    def times(self, rng: Random, load: float) -> Iterator[float]:
        """Thin a process at the highest rate, so that a window needs no care at its edges."""
        steps = _rate_steps(self.windows)
        peak = self.rate * load * max(factor for _, factor in steps)
        now, place = 0.0, 0
        while peak > 0:
            now += rng.expovariate(peak)
            while place + 1 < len(steps) and steps[place + 1][0] <= now:
                place += 1
            if rng.random() * peak < self.rate * load * steps[place][1]:
                yield now


@dataclass(frozen=True, slots=True)
class Bursty:
    """On and off, each for an exponential time; Poisson at a higher rate while on, so that `rate` is the mean."""

    rate: float
    mean_on_s: float  # mean s
    mean_off_s: float  # mean s

    def times(self, rng: Random, load: float) -> Iterator[float]:
        within = self.rate * load * (self.mean_on_s + self.mean_off_s) / self.mean_on_s
        begin = 0.0
        while within > 0:
            end = begin + rng.expovariate(1 / self.mean_on_s)
            now = begin + rng.expovariate(within)
            while now < end:
                yield now
                now += rng.expovariate(within)
            begin = end + (rng.expovariate(1 / self.mean_off_s) if self.mean_off_s else 0.0)


@dataclass(frozen=True, slots=True)
class Regular:
    """One request every 1/rate s, the first at once: what the artifacts of fairness papers offer."""

    rate: float

    def times(self, rng: Random, load: float) -> Iterator[float]:
        number = 0
        while self.rate * load > 0:
            yield number / (self.rate * load)
            number += 1


@dataclass(frozen=True, slots=True)
class Renewal:
    """Rates and shapes of gaps by window of time, as ServeGen describes a client.

    Source: Xiang et al. 2025, ServeGen: gaps are gamma or Weibull distributed with a coefficient of variation of
    their own in each window; a window starts its process anew.
    """

    windows: Sequence["RenewalWindow"]

    def times(self, rng: Random, load: float) -> Iterator[float]:
        for window in self.windows:
            if window.rate <= 0:
                continue
            now = window.start + window.gap(rng) * rng.random() / load
            while now < window.end:
                yield now
                now += window.gap(rng) / load


@dataclass(frozen=True, slots=True)
class RenewalWindow:
    start: float
    end: float
    rate: float
    family: str  # gamma, weibull, or empty: exponential
    shape: float = 1.0

    def gap(self, rng: Random) -> float:
        """Draw a gap whose mean is 1/rate."""
        if self.family == "gamma":
            return rng.gammavariate(self.shape, 1 / (self.rate * self.shape))
        if self.family == "weibull":
            return rng.weibullvariate(1 / (self.rate * math.gamma(1 + 1 / self.shape)), self.shape)
        return rng.expovariate(self.rate)


def _rate_steps(windows: Sequence[RateWindow]) -> list[tuple[float, float]]:
    """Return from when on which factor holds, ascending."""
    edges = sorted({0.0, *(each.start for each in windows), *(each.end for each in windows)})
    return [(edge, math.prod(each.factor for each in windows if each.start <= edge < each.end)) for edge in edges]
