"""A line through looks at something that may grow. Pure."""

import math
from collections.abc import Sequence
from statistics import fmean, linear_regression
from typing import NamedTuple


class Slope(NamedTuple):
    """By least squares. Looks that follow each other are alike, so the error is rather larger than it says."""

    per_unit: float  # for one unit of x
    standard_error: float  # standard error of that


def fit_slope(x: Sequence[float], y: Sequence[float]) -> Slope:
    """Of fewer than three looks, or of looks at one x, nothing can be said: a rise of 0 with an error of 0."""
    if len(x) < 3 or min(x) == max(x):
        return Slope(0.0, 0.0)
    line = linear_regression(x, y)
    middle = fmean(x)
    left = sum((value - line.intercept - line.slope * at) ** 2 for at, value in zip(x, y, strict=True))
    spread = sum((at - middle) ** 2 for at in x)
    return Slope(line.slope, math.sqrt(left / (len(x) - 2) / spread))
