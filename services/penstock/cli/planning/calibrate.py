"""`penstock simulate --calibrate`: measures the engine's steps, fits the step time model, shows it and writes it."""

from dataclasses import dataclass
from pathlib import Path

from penstock.bench.progress import progress_reporter
from penstock.cli.tables import stderr_console, stdout_console
from penstock.simulator.calibration.fit import MeasuredStep, fit_with_validation
from penstock.simulator.calibration.measure import TimingsByPoint, disturbed_points, measure_points, open_calibration
from penstock.simulator.calibration.result import CalibrationResult
from penstock.simulator.calibration.timed_engine import effective_cores, mean_work, typical_duration_s
from penstock.worker.engine.machine.cpu_limits import available_cores
from penstock.worker.engine.simulated.step_time import MeasurementFacts, step_time_toml

# Of the engine's threads. With fewer effective cores, other processes disturbed every step, or the model is tiny.
MIN_CORE_SHARE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOptions:
    model: str
    threads: int  # 0: one for each core
    rounds: int
    out: Path | None
    plot: Path | None
    as_json: bool


def calibrate(options: CalibrationOptions) -> None:
    """Raises ValueError if too few points could be measured."""
    threads = options.threads or available_cores()
    with progress_reporter(stderr_console) as report_progress:
        report_progress(f"loading {options.model}")
        timings = measure_points(open_calibration(options.model, threads), options.rounds, report_progress)
    result = calibration_result(timings, options.model, threads)
    if options.out:
        options.out.write_text(step_time_toml(result.fit.step_time, result.facts), encoding="utf-8")
    if options.plot:
        result.plot(options.plot)
    _show(result, options)


def calibration_result(timings_by_point: TimingsByPoint, model: str, threads: int) -> CalibrationResult:
    timings_by_point = {point: timings for point, timings in timings_by_point.items() if timings}
    cores = effective_cores([timing for timings in timings_by_point.values() for timing in timings])
    steps = [MeasuredStep(mean_work(each), typical_duration_s(each, cores)) for each in timings_by_point.values()]
    fit = fit_with_validation(steps)
    facts: MeasurementFacts = {
        "model": model,
        "threads": threads,
        "cores": round(cores, 2),
        "points": len(steps),
        "points_by_cpu_time": len(disturbed_points(timings_by_point)),
        "median_error": round(fit.median_error, 4),
        "p95_error": round(fit.p95_error, 4),
    }
    return CalibrationResult(points=list(timings_by_point), steps=steps, fit=fit, facts=facts)


def _show(result: CalibrationResult, options: CalibrationOptions) -> None:
    if options.as_json:
        stdout_console.print_json(data=result.to_json())
    else:
        for table in (result.step_time_table(), result.error_table()):
            stdout_console.print(table)
    by_cpu, cores = result.facts["points_by_cpu_time"], float(result.facts["cores"])
    if by_cpu:
        stderr_console.print(
            f"other processes used the machine: {by_cpu} of {len(result.points)} points are CPU time, not wall time"
        )
    if cores < MIN_CORE_SHARE * float(result.facts["threads"]):
        stderr_console.print(
            f"the engine had {cores:.1f} of {result.facts['threads']} cores: the step times hold for these cores"
        )
    for name, path in (("step times", options.out), ("plot", options.plot)):
        if path:
            stderr_console.print(f"{name}: {path}")
