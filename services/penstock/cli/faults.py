"""`penstock faults`: worlds that break in every way a seed can think of, and one of them told frame by frame."""

import sys
import time
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from penstock.cli.tables import stderr_console, stdout_console
from penstock.faults.failpoints import FAILPOINTS
from penstock.faults.plan import PlanOverrides
from penstock.faults.run import WorldResult
from penstock.faults.sweep import SweepSummary, replay, run_seeds

MAX_SHOWN_WORLDS = 20  # failing worlds


def run_faults(seeds: range, processes: int, *, overrides: PlanOverrides, as_json: bool) -> None:
    """Exits with 1 where a promise was broken."""
    begun, tally = time.monotonic(), SweepSummary()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr_console, transient=True) as progress:
        line = progress.add_task("worlds", total=len(seeds))
        for outcome in run_seeds(seeds, overrides, processes=processes):
            tally.add(outcome)
            found = f", {len(tally.failed_worlds)} with broken promises" if tally.failed_worlds else ""
            progress.update(line, advance=1, description=f"worlds{found}")
    took = time.monotonic() - begun
    if as_json:
        stdout_console.print_json(data=_summary_json(tally, took))
    else:
        _show_summary(tally, took)
    if tally.failed_worlds:
        sys.exit(1)


def show_replay(seed: int, overrides: PlanOverrides) -> None:
    """Replay one seed and print all that was said in it; exits with 1 where a promise was broken."""
    outcome, story = replay(seed, overrides)
    for line in story:
        print(line)
    _show_result(outcome)
    if outcome.violations:
        sys.exit(1)


def _summary_json(summary: SweepSummary, took: float) -> dict[str, Any]:
    return {
        "worlds": summary.worlds,
        "worlds_with_faults": summary.worlds_with_faults,
        "requests": summary.requests,
        "faults": dict(summary.faults_by_kind),
        "virtual_seconds": round(summary.virtual_s, 1),
        "seconds": round(took, 2),
        "worlds_per_s": round(summary.worlds / took, 1),
        "failpoints": len(FAILPOINTS),
        "failpoints_hit": summary.failpoints_hit,
        "failpoints_missed": [str(failpoint) for failpoint in summary.failpoints_missed],
        "failing": {str(each.plan.seed): [str(found) for found in each.violations] for each in summary.failed_worlds},
    }


def _show_summary(summary: SweepSummary, took: float) -> None:
    for outcome in sorted(summary.failed_worlds, key=lambda each: each.plan.seed)[:MAX_SHOWN_WORLDS]:
        _show_result(outcome)
    table = Table(box=None, pad_edge=False, show_header=False)
    faults = ", ".join(f"{count:,} {act}" for act, count in summary.faults_by_kind.most_common())
    missed = f"; never: {', '.join(map(str, summary.failpoints_missed))}" if summary.failpoints_missed else ""
    for name, text in (
        (
            "worlds",
            (
                f"{summary.worlds:,}, {summary.worlds_with_faults:,} with faults; "
                f"{len(summary.failed_worlds)} with broken promises"
            ),
        ),
        ("requests", f"{summary.requests:,}"),
        ("faults", faults or "none"),
        ("failpoints", f"{summary.failpoints_hit} of {len(FAILPOINTS)} were passed{missed}"),
        ("time", f"{summary.virtual_s:,.0f} s passed in {took:.1f} s; {summary.worlds / took:.1f} worlds/s"),
    ):
        table.add_row(name, text)
    stdout_console.print(table)


def _show_result(result: WorldResult) -> None:
    plan = result.plan
    stdout_console.print(f"[bold]seed {plan.seed}[/bold]: {plan.shape}")
    for line in result.injected:
        stdout_console.print(f"  happened: {line}")
    for found in result.violations:
        stdout_console.print(f"  [red]{found.kind}[/red]: {found.text}", markup=True)
    stdout_console.print(f"  replay: penstock faults --seed {plan.seed}{plan.overrides} --story")
