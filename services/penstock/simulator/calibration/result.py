"""Points of a calibration (decode, prefill and mixed steps), and its result as tables, JSON and a plot."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from penstock.bench.plot import new_figure
from penstock.bench.statistics import quantile
from penstock.bench.tables import new_table
from penstock.simulator.calibration.fit import MeasuredStep, StepTimeFit
from penstock.worker.engine.simulated.step_time import FIELD_BY_KEY, SECONDS_PER_MS, MeasurementFacts

BLOCK_SIZE = 16
TOKEN_BUDGET = 1024  # tokens per step; above the tokens of every point
DECODE_MARGIN_TOKENS = 16  # tokens that a sequence generates while it is measured

# Context lengths by the number of decodes, all multiples of a block. Long contexts are measured with few decodes only:
# the prefill of many long contexts takes minutes and adds no information.
DECODE_CONTEXTS = {
    1: (64, 512, 1024, 2048, 4096),
    2: (64, 1024, 2048),
    4: (128, 512, 2048),
    8: (64, 256, 1024),
    16: (128, 512, 768),
    32: (32, 128, 512),
}
PREFILL_CHUNKS = (16, 32, 64, 128, 256, 512)
PREFILL_STARTS = (0, 512, 1536, 3584)
MIXED_POINTS = (
    (4, 512, 64, 0),
    (4, 2048, 256, 512),
    (8, 256, 16, 512),
    (8, 1024, 128, 0),
    (16, 128, 256, 0),
    (16, 512, 32, 1536),
    (32, 128, 64, 512),
    (32, 512, 480, 0),
)


@dataclass(frozen=True, slots=True)
class CalibrationPoint:
    """`seqs` decodes that read `context` positions each, beside `chunk` prefilled tokens after `start` cached ones."""

    seqs: int = 0
    context: int = 0
    chunk: int = 0
    start: int = 0

    @property
    def kind(self) -> str:
        return "mixed" if self.seqs and self.chunk else "decode" if self.seqs else "prefill"


def points_for(context_length: int, slots: int) -> list[CalibrationPoint]:
    """Return all points that fit the model's context and the engine's slots."""
    candidates = [
        *(
            CalibrationPoint(seqs=seqs, context=context)
            for seqs, contexts in DECODE_CONTEXTS.items()
            for context in contexts
        ),
        *(CalibrationPoint(chunk=chunk, start=start) for chunk in PREFILL_CHUNKS for start in PREFILL_STARTS),
        *(CalibrationPoint(*mixed) for mixed in MIXED_POINTS),
    ]
    return [
        point
        for point in candidates
        if max(point.context + DECODE_MARGIN_TOKENS, point.start + point.chunk) < context_length and point.seqs < slots
    ]


def cached_lengths(points: Sequence[CalibrationPoint]) -> list[int]:
    """Return the tokens of each sequence that must be cached, so that no point includes their prefill; longest first.

    The first sequence is also the prefix of the prefill chunks.
    """
    seqs = max(1, *(point.seqs for point in points))
    lengths = [max((point.context for point in points if point.seqs > place), default=0) for place in range(seqs)]
    lengths[0] = max(lengths[0], *(point.start for point in points))
    return lengths


def kv_blocks_for(points: Sequence[CalibrationPoint]) -> int:
    """Return the KV blocks that hold all contexts, and the blocks that one round leaves in the prefix cache."""
    lengths = cached_lengths(points)
    round_tokens = sum(point.chunk + BLOCK_SIZE for point in points) + 2 * DECODE_MARGIN_TOKENS * len(lengths)
    return (sum(lengths) + 2 * round_tokens) // BLOCK_SIZE + 2 * len(lengths)


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

    def step_time_table(self) -> Table:
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
