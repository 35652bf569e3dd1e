"""Arrival processes: generators of arrival times in s from the start, endless unless a trace ends. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol


class ArrivalProcess(Protocol):
    """A generator of arrival times."""

    def times(self, rng: Random, load: float) -> Iterator[float]:
        """Yield ascending times; `load` multiplies the rate."""


@dataclass(frozen=True, slots=True)
class RateWindow:
    """A time window in which the rate is multiplied by `factor`, for steps, spikes and pauses."""

    start: float
    end: float
    factor: float


@dataclass(frozen=True, slots=True)
class Poisson:
    """A Poisson process at `rate` per s, multiplied by the factors of all windows that contain the time."""

    rate: float
    windows: Sequence[RateWindow] = ()

    def times(self, rng: Random, load: float) -> Iterator[float]:
        """Yield ascending times by thinning a process at the highest rate, so that windows need no special case."""
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
class Diurnal:
    """A Poisson process whose rate is a sine wave around `rate`, as that of a day.

    `amplitude`: share of `rate` by which it rises and falls, in [0, 1]. `peak_at`: s of a peak; others follow at
    multiples of `period_s`.
    """

    rate: float
    period_s: float
    amplitude: float
    peak_at: float = 0.0

    def times(self, rng: Random, load: float) -> Iterator[float]:
        """Yield ascending times by thinning a process at the highest rate."""
        now, peak = 0.0, self.rate * load * (1 + self.amplitude)
        while peak > 0:
            now += rng.expovariate(peak)
            wave = math.cos(2 * math.pi * (now - self.peak_at) / self.period_s)
            if rng.random() * (1 + self.amplitude) < 1 + self.amplitude * wave:
                yield now


@dataclass(frozen=True, slots=True)
class Bursty:
    """An on-off process with exponential phases; Poisson at a higher rate in on phases, so that `rate` is the mean."""

    rate: float
    mean_on_s: float
    mean_off_s: float

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
    """One request every 1/rate s, the first at 0 s, as in the artifacts of papers on fairness."""

    rate: float

    def times(self, rng: Random, load: float) -> Iterator[float]:
        number = 0
        while self.rate * load > 0:
            yield number / (self.rate * load)
            number += 1


@dataclass(frozen=True, slots=True)
class Renewal:
    """A renewal process whose rate and gap distribution change by time window, as ServeGen describes clients.

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
    """A time window of a renewal process."""

    start: float
    end: float
    rate: float
    family: str  # gamma, weibull, or empty: exponential
    shape: float = 1.0

    def gap(self, rng: Random) -> float:
        """Sample a gap with the mean 1/rate."""
        if self.family == "gamma":
            return rng.gammavariate(self.shape, 1 / (self.rate * self.shape))
        if self.family == "weibull":
            return rng.weibullvariate(1 / (self.rate * math.gamma(1 + 1 / self.shape)), self.shape)
        return rng.expovariate(self.rate)


def _rate_steps(windows: Sequence[RateWindow]) -> list[tuple[float, float]]:
    """Return the factors in ascending order of the times from which they hold."""
    edges = sorted({0.0, *(each.start for each in windows), *(each.end for each in windows)})
    return [(edge, math.prod(each.factor for each in windows if each.start <= edge < each.end)) for edge in edges]
