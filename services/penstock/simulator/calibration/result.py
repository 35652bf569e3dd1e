"""The result of a calibration, as tables, JSON and a plot."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from penstock.bench.plot import new_figure
from penstock.bench.statistics import quantile
from penstock.bench.tables import new_table
from penstock.simulator.calibration.fit import MeasuredStep, StepTimeFit
from penstock.simulator.calibration.points import CalibrationPoint
from penstock.worker.engine.simulated.step_time import FIELD_BY_KEY, SECONDS_PER_MS, MeasurementFacts

TERM_MEANINGS = {
    "base_ms": "each step",
    "prefill_token_ms": "each prefilled token",
    "decode_seq_ms": "each decoding sequence",
    "context_token_ms": "each position that a decode reads",
    "prefill_context_token_ms": "each position that a prefilled token reads",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationResult:
    """The fitted model with its measured points."""

    points: list[CalibrationPoint]
    steps: list[MeasuredStep]  # of each point
    fit: StepTimeFit
    facts: MeasurementFacts

    def to_json(self) -> dict[str, Any]:
        step_time = {name: getattr(self.fit.step_time, field) / SECONDS_PER_MS for name, field in FIELD_BY_KEY.items()}
        measured = [
            {
                "kind": point.kind,
                **step.work._asdict(),
                "measured_ms": step.duration_s / SECONDS_PER_MS,
                "held_out_ms": predicted / SECONDS_PER_MS,
            }
            for point, step, predicted in zip(self.points, self.steps, self.fit.held_out_predictions, strict=True)
        ]
        return {"step_time": step_time, "measured": dict(self.facts), "points": measured}

    def law_table(self) -> Table:
        table = new_table("term", "for", numbers=("us",))
        for name, field in FIELD_BY_KEY.items():
            us = getattr(self.fit.step_time, field) * 1e6
            table.add_row(name.removesuffix("_ms"), TERM_MEANINGS[name], f"{us:,.5g}")
        return table

    def error_table(self) -> Table:
        """Return the relative errors of held-out predictions, by kind of step and over all steps."""
        errors = defaultdict(list)
        for point, error in zip(self.points, self.fit.relative_errors, strict=True):
            errors[point.kind].append(error)
            errors["all"].append(error)
        table = new_table("steps", numbers=("points", "median error", "P95"))
        for kind in ("decode", "prefill", "mixed", "all"):
            if values := errors[kind]:
                table.add_row(kind, str(len(values)), f"{quantile(values, 0.5):.1%}", f"{quantile(values, 0.95):.1%}")
        return table

    def plot(self, path: Path) -> None:
        """Write a PNG or SVG, by the suffix of `path`: measured durations against held-out predictions."""
        title = f"{self.facts['model']}, median error {self.fit.median_error:.1%}, P95 {self.fit.p95_error:.1%}"
        durations = [step.duration_s / SECONDS_PER_MS for step in self.steps]
        ends = [min(durations), max(durations)]
        with new_figure(path, columns=2, height=4.6, title=title) as (plain, relative):
            for kind in ("decode", "prefill", "mixed"):
                places = [place for place, point in enumerate(self.points) if point.kind == kind]
                measured = [durations[place] for place in places]
                predicted = [self.fit.held_out_predictions[place] / SECONDS_PER_MS for place in places]
                plain.scatter(measured, predicted, s=18, label=kind)
                relative.scatter(measured, [100 * (b / a - 1) for a, b in zip(measured, predicted, strict=True)], s=18)
            plain.plot(ends, ends, color="grey", linewidth=1)
            relative.axhline(0, color="grey", linewidth=1)
            plain.set(
                xscale="log", yscale="log", xlabel="measured, ms", ylabel="predicted, ms", title="Steps of the engine"
            )
            relative.set(
                xscale="log",
                xlabel="measured, ms",
                ylabel="prediction above measurement, %",
                title="Error of held-out steps",
            )
