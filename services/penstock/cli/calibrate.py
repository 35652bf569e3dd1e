"""`penstock simulate --calibrate`: measure, fit, show, write."""

from dataclasses import dataclass
from pathlib import Path

from rich.live import Live
from rich.markup import escape

from penstock.cli.tables import stderr_console, stdout_console
from penstock.simulator.calibration.fit import MeasuredStep, fit_with_validation
from penstock.simulator.calibration.measure import TimingsByPoint, disturbed_points, measure_points, open_calibration
from penstock.simulator.calibration.result import CalibrationResult
from penstock.simulator.calibration.timed_engine import effective_cores, mean_work, typical_duration_s
from penstock.worker.engine.machine.cpu_limits import available_cores
from penstock.worker.engine.simulated.step_time import MeasurementFacts, step_time_toml

MIN_CORE_SHARE = (
    0.8  # of its threads; with fewer cores than that others were in the way all along, or the model is tiny
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOptions:
    model: str
    threads: int  # 0: one for each core
    rounds: int
    out: Path | None
    plot: Path | None
    as_json: bool


def calibrate(options: CalibrationOptions) -> None:
    """Raises ValueError where too few points could be measured."""
    threads = options.threads or available_cores()
    with Live(console=stderr_console, transient=True, auto_refresh=False) as live:

        def say(line: str) -> None:
            live.update(escape(line), refresh=True)

        say(f"loading {options.model}")
        turns = measure_points(open_calibration(options.model, threads), options.rounds, say)
    outcome = calibration_result(turns, options.model, threads)
    if options.out:
        options.out.write_text(step_time_toml(outcome.fit.step_time, outcome.facts), encoding="utf-8")
    if options.plot:
        outcome.plot(options.plot)
    _show(outcome, options)


def calibration_result(timings_by_point: TimingsByPoint, model: str, threads: int) -> CalibrationResult:
    timings_by_point = {point: found for point, found in timings_by_point.items() if found}
    cores = effective_cores([turn for found in timings_by_point.values() for turn in found])
    steps = [MeasuredStep(mean_work(found), typical_duration_s(found, cores)) for found in timings_by_point.values()]
    found = fit_with_validation(steps)
    facts: MeasurementFacts = {
        "model": model,
        "threads": threads,
        "cores": round(cores, 2),
        "points": len(steps),
        "points_by_cpu_time": len(disturbed_points(timings_by_point)),
        "median_error": round(found.median_error, 4),
        "p95_error": round(found.p95_error, 4),
    }
    return CalibrationResult(points=list(timings_by_point), steps=steps, fit=found, facts=facts)


def _show(result: CalibrationResult, options: CalibrationOptions) -> None:
    if options.as_json:
        stdout_console.print_json(data=result.to_json())
    else:
        for table in (result.law_table(), result.error_table()):
            stdout_console.print(table)
    by_cpu, cores = result.facts["points_by_cpu_time"], float(result.facts["cores"])
    if by_cpu:
        stderr_console.print(
            f"others used the machine: {by_cpu} of {len(result.points)} points are by CPU time, not wall time"
        )
    if cores < MIN_CORE_SHARE * float(result.facts["threads"]):
        stderr_console.print(
            f"the engine had {cores:.1f} of {result.facts['threads']} cores: this law is of an engine that has no more"
        )
    for name, path in (("law", options.out), ("plot", options.plot)):
        if path:
            stderr_console.print(f"{name}: {path}")
