"""`penstock faults`: runs worlds with injected faults, and replays one of them with its frame log."""

import sys
import time
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from penstock.cli.tables import stderr_console, stdout_console
from penstock.faults.failpoints import FAILPOINTS
from penstock.faults.plan import PlanOverrides
from penstock.faults.result import WorldResult
from penstock.faults.sweep import SweepSummary, replay, run_seeds

MAX_SHOWN_WORLDS = 20  # failed worlds that are printed


def run_faults(seeds: range, processes: int, *, overrides: PlanOverrides, as_json: bool) -> None:
    """Run the seeds and print a summary; exits with status 1 if a guarantee was violated."""
    started_at, summary = time.monotonic(), SweepSummary()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr_console, transient=True) as progress:
        line = progress.add_task("worlds", total=len(seeds))
        for result in run_seeds(seeds, overrides, processes=processes):
            summary.add(result)
            failed = f", {len(summary.failed_worlds)} with violations" if summary.failed_worlds else ""
            progress.update(line, advance=1, description=f"worlds{failed}")
    elapsed_s = time.monotonic() - started_at
    if as_json:
        stdout_console.print_json(data=_summary_json(summary, elapsed_s))
    else:
        _show_summary(summary, elapsed_s)
    if summary.failed_worlds:
        sys.exit(1)


def show_replay(seed: int, overrides: PlanOverrides) -> None:
    """Replay one seed and print its frame log; exits with status 1 if a guarantee was violated."""
    result, frame_log = replay(seed, overrides)
    for line in frame_log:
        print(line)
    _show_result(result)
    if result.violations:
        sys.exit(1)


def _summary_json(summary: SweepSummary, elapsed_s: float) -> dict[str, Any]:
    return {
        "worlds": summary.worlds,
        "worlds_with_faults": summary.worlds_with_faults,
        "requests": summary.requests,
        "faults": dict(summary.faults_by_kind),
        "virtual_seconds": round(summary.virtual_s, 1),
        "seconds": round(elapsed_s, 2),
        "worlds_per_s": round(summary.worlds / elapsed_s, 1),
        "failpoints": len(FAILPOINTS),
        "failpoints_hit": summary.failpoints_hit,
        "failpoints_missed": [str(failpoint) for failpoint in summary.failpoints_missed],
        "failed": {
            str(each.plan.seed): [str(violation) for violation in each.violations] for each in summary.failed_worlds
        },
    }


def _show_summary(summary: SweepSummary, elapsed_s: float) -> None:
    for result in sorted(summary.failed_worlds, key=lambda each: each.plan.seed)[:MAX_SHOWN_WORLDS]:
        _show_result(result)
    table = Table(box=None, pad_edge=False, show_header=False)
    faults = ", ".join(f"{count:,} {kind}" for kind, count in summary.faults_by_kind.most_common())
    missed = f"; never: {', '.join(map(str, summary.failpoints_missed))}" if summary.failpoints_missed else ""
    for name, text in (
        (
            "worlds",
            (
                f"{summary.worlds:,}, {summary.worlds_with_faults:,} with faults; "
                f"{len(summary.failed_worlds)} with violations"
            ),
        ),
        ("requests", f"{summary.requests:,}"),
        ("faults", faults or "none"),
        ("failpoints", f"{summary.failpoints_hit} of {len(FAILPOINTS)} were reached{missed}"),
        (
            "time",
            f"{summary.virtual_s:,.0f} virtual s in {elapsed_s:.1f} s; {summary.worlds / elapsed_s:.1f} worlds/s",
        ),
    ):
        table.add_row(name, text)
    stdout_console.print(table)


def _show_result(result: WorldResult) -> None:
    plan = result.plan
    stdout_console.print(f"[bold]seed {plan.seed}[/bold]: {plan.shape}")
    for line in result.injected:
        stdout_console.print(f"  injected: {line}")
    for violation in result.violations:
        stdout_console.print(f"  [red]{violation.kind}[/red]: {violation.text}", markup=True)
    stdout_console.print(f"  replay: penstock faults --seed {plan.seed}{plan.overrides} --frame-log")
