"""The law that fits measured steps best, and how wrong it is about steps it was not fitted to. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from penstock.bench.statistics import quantile
from penstock.worker.engine.simulated.step_time import StepTimeModel, StepWork

FOLDS = 5
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A step and how long it takes with the machine to itself."""

    work: StepWork
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeFit:
    step_time: StepTimeModel  # fitted to every step
    held_out_predictions: Sequence[float]  # of each step in s, by a law that was fitted without it
    relative_errors: Sequence[float]  # relative, of those

    @property
    def median_error(self) -> float:
        return quantile(self.relative_errors, 0.5)

    @property
    def p95_error(self) -> float:
        return quantile(self.relative_errors, 0.95)


def fit_with_validation(steps: Sequence[MeasuredStep]) -> StepTimeFit:
    """Cross-validated over folds that take turns, so that each has steps of every kind. Needs ten steps at least."""
    if len(steps) < 2 * FOLDS:
        raise ValueError(f"{len(steps)} steps are too few to fit a law and to test it; measure {2 * FOLDS} at least")
    held_out = [0.0] * len(steps)
    for fold in range(FOLDS):
        law = fit_step_time([step for place, step in enumerate(steps) if place % FOLDS != fold])
        for place in range(fold, len(steps), FOLDS):
            held_out[place] = law.duration_s(steps[place].work)
    errors = [abs(said - step.duration_s) / step.duration_s for said, step in zip(held_out, steps, strict=True)]
    return StepTimeFit(step_time=fit_step_time(steps), held_out_predictions=held_out, relative_errors=errors)


def fit_step_time(steps: Sequence[MeasuredStep]) -> StepTimeModel:
    """Least squares of relative errors: a decode step of 10 ms counts as much as a prefill of half a second."""
    rows = np.array([[1.0, *step.work] for step in steps])
    seconds = np.array([step.duration_s for step in steps])
    base, prefill, decode, context, reads = _non_negative_least_squares(
        rows / seconds[:, None], np.ones(len(steps))
    ).tolist()
    return StepTimeModel(
        base_s=base,
        per_prefill_token_s=prefill,
        per_decode_seq_s=decode,
        per_context_token_s=context,
        per_prefill_context_token_s=reads,
    )


def _non_negative_least_squares(rows: Floats, targets: Floats) -> Floats:
    """Least squares with no term below 0: the best of all sets of terms, which are few enough to try each.

    The first term is always in. rows: [steps, terms]; wanted: [steps]
    """
    terms = rows.shape[1]
    scale = np.abs(rows).max(axis=0)
    scale[scale == 0] = 1.0
    best, least = np.zeros(terms), np.inf
    for size in range(terms):
        for others in combinations(range(1, terms), size):
            chosen = [0, *others]
            found = np.linalg.lstsq(rows[:, chosen] / scale[chosen], targets, rcond=None)[0] / scale[chosen]
            missed = float(np.square(rows[:, chosen] @ found - targets).sum())
            if found.min() >= 0 and missed < least:
                best, least = np.zeros(terms), missed
                best[chosen] = found
    return best
