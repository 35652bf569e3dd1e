"""Fits the step-time model to measured steps, with cross-validation. Pure."""

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
    """The work of a step, and its duration on an otherwise idle machine."""

    work: StepWork
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeFit:
    """A fitted model and its errors on held-out steps."""

    step_time: StepTimeModel  # fitted to every step
    held_out_predictions: Sequence[float]  # s; of each step, by a model that was fitted without it
    relative_errors: Sequence[float]  # of the held-out predictions

    @property
    def median_error(self) -> float:
        return quantile(self.relative_errors, 0.5)

    @property
    def p95_error(self) -> float:
        return quantile(self.relative_errors, 0.95)


def fit_with_validation(steps: Sequence[MeasuredStep]) -> StepTimeFit:
    """Fit the model and cross-validate it; folds are interleaved, so that each fold has steps of every kind."""
    if len(steps) < 2 * FOLDS:
        raise ValueError(f"{len(steps)} steps are too few to fit and validate a model; measure at least {2 * FOLDS}")
    held_out = [0.0] * len(steps)
    for fold in range(FOLDS):
        model = fit_step_time([step for place, step in enumerate(steps) if place % FOLDS != fold])
        for place in range(fold, len(steps), FOLDS):
            held_out[place] = model.duration_s(steps[place].work)
    errors = [
        abs(predicted - step.duration_s) / step.duration_s for predicted, step in zip(held_out, steps, strict=True)
    ]
    return StepTimeFit(step_time=fit_step_time(steps), held_out_predictions=held_out, relative_errors=errors)


def fit_step_time(steps: Sequence[MeasuredStep]) -> StepTimeModel:
    """Fit by least squares of relative errors, so that a 10 ms decode counts as much as a 500 ms prefill."""
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
    """Return the least-squares solution without negative terms, the best over all subsets of terms.

    The first term is in every subset. rows: [steps, terms]; targets: [steps]
    """
    terms = rows.shape[1]
    scale = np.abs(rows).max(axis=0)
    scale[scale == 0] = 1.0
    best, best_error = np.zeros(terms), np.inf
    for size in range(terms):
        for others in combinations(range(1, terms), size):
            chosen = [0, *others]
            solution = np.linalg.lstsq(rows[:, chosen] / scale[chosen], targets, rcond=None)[0] / scale[chosen]
            error = float(np.square(rows[:, chosen] @ solution - targets).sum())
            if solution.min() >= 0 and error < best_error:
                best, best_error = np.zeros(terms), error
                best[chosen] = solution
    return best
