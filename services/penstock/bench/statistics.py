"""Quantiles, distributions and slopes. Pure."""

import math
from collections.abc import Sequence
from statistics import fmean, linear_regression
from typing import NamedTuple

QUANTILES = (0.5, 0.9, 0.99)


def quantile(values: Sequence[float], rank: float) -> float:
    """Return the linearly interpolated quantile of `values`, which need not be sorted; 0 if there are none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = rank * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def distribution(values: Sequence[float]) -> dict[str, float] | None:
    """Return mean, quantiles and maximum by name; None if there are no values."""
    if not values:
        return None
    named = {f"p{round(share * 100)}": quantile(values, share) for share in QUANTILES}
    return {"mean": sum(values) / len(values), **named, "max": max(values)}


class Slope(NamedTuple):
    """A least-squares slope. Successive samples are correlated, so the true error is larger than `standard_error`."""

    per_unit: float  # of x
    standard_error: float


def fit_slope(x: Sequence[float], y: Sequence[float]) -> Slope:
    """Fit a line; with fewer than three samples, or equal x, the slope and its error are 0."""
    if len(x) < 3 or min(x) == max(x):
        return Slope(0.0, 0.0)
    line = linear_regression(x, y)
    middle = fmean(x)
    residuals = sum((value - line.intercept - line.slope * at) ** 2 for at, value in zip(x, y, strict=True))
    spread = sum((at - middle) ** 2 for at in x)
    return Slope(line.slope, math.sqrt(residuals / (len(x) - 2) / spread))
