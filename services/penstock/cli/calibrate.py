"""`penstock simulate --calibrate`: measure, fit, show, write."""

from dataclasses import dataclass
from pathlib import Path

from rich.live import Live
from rich.markup import escape

from penstock.cli.tables import answers, errors
from penstock.simulator.calibration.fit import Measured, fit
from penstock.simulator.calibration.measure import Turns, disturbed, measure, open_rounds
from penstock.simulator.calibration.result import Outcome
from penstock.simulator.calibration.timed_engine import cores_had, settled, typical_work
from penstock.worker.engine.cores import available_cores
from penstock.worker.engine.law_file import MeasurementFacts, step_time_toml

BUSY = 0.8  # of its threads; with fewer cores than that others were in the way all along, or the model is tiny


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOptions:
    model: str
    threads: int  # 0: one for each core
    rounds: int
    out: Path | None
    plot: Path | None
    as_json: bool


def calibrate(asked: CalibrationOptions) -> None:
    """Raises ValueError where too few points could be measured."""
    threads = asked.threads or available_cores()
    with Live(console=errors, transient=True, auto_refresh=False) as live:

        def say(line: str) -> None:
            live.update(escape(line), refresh=True)

        say(f"loading {asked.model}")
        turns = measure(open_rounds(asked.model, threads), asked.rounds, say)
    outcome = outcome_of(turns, asked.model, threads)
    if asked.out:
        asked.out.write_text(step_time_toml(outcome.fit.law, outcome.facts), encoding="utf-8")
    if asked.plot:
        outcome.plot(asked.plot)
    _show(outcome, asked)


def outcome_of(turns: Turns, model: str, threads: int) -> Outcome:
    turns = {point: found for point, found in turns.items() if found}
    cores = cores_had([turn for found in turns.values() for turn in found])
    steps = [Measured(typical_work(found), settled(found, cores)) for found in turns.values()]
    found = fit(steps)
    facts: MeasurementFacts = {
        "model": model,
        "threads": threads,
        "cores": round(cores, 2),
        "points": len(steps),
        "points_by_cpu_time": len(disturbed(turns)),
        "median_error": round(found.median_error, 4),
        "p95_error": round(found.p95_error, 4),
    }
    return Outcome(points=list(turns), steps=steps, fit=found, facts=facts)


def _show(outcome: Outcome, asked: CalibrationOptions) -> None:
    if asked.as_json:
        answers.print_json(data=outcome.to_json())
    else:
        for table in (outcome.law_table(), outcome.error_table()):
            answers.print(table)
    by_cpu, cores = outcome.facts["points_by_cpu_time"], float(outcome.facts["cores"])
    if by_cpu:
        errors.print(
            f"others used the machine: {by_cpu} of {len(outcome.points)} points are by CPU time, not wall time"
        )
    if cores < BUSY * float(outcome.facts["threads"]):
        errors.print(
            f"the engine had {cores:.1f} of {outcome.facts['threads']} cores: this law is of an engine that has no more"
        )
    for name, path in (("law", asked.out), ("plot", asked.plot)):
        if path:
            errors.print(f"{name}: {path}")
