"""`penstock faults`: worlds that break in every way a seed can think of, and one of them told frame by frame."""

import sys
import time
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from penstock.cli.tables import answers, errors
from penstock.faults.failpoints import POINTS
from penstock.faults.plan import Twist
from penstock.faults.run import Outcome
from penstock.faults.sweep import Tally, replay, sweep

SHOWN = 20  # failing worlds


def run_faults(seeds: range, processes: int, *, twist: Twist, as_json: bool) -> None:
    """Exits with 1 where a promise was broken."""
    begun, tally = time.monotonic(), Tally()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        line = progress.add_task("worlds", total=len(seeds))
        for outcome in sweep(seeds, twist, processes=processes):
            tally.add(outcome)
            found = f", {len(tally.failing)} with broken promises" if tally.failing else ""
            progress.update(line, advance=1, description=f"worlds{found}")
    took = time.monotonic() - begun
    if as_json:
        answers.print_json(data=_figures(tally, took))
    else:
        _show(tally, took)
    if tally.failing:
        sys.exit(1)


def tell(seed: int, twist: Twist) -> None:
    """Replay one seed and print all that was said in it; exits with 1 where a promise was broken."""
    outcome, story = replay(seed, twist)
    for line in story:
        print(line)
    _show_world(outcome)
    if outcome.violations:
        sys.exit(1)


def _figures(tally: Tally, took: float) -> dict[str, Any]:
    return {
        "worlds": tally.worlds,
        "worlds_with_faults": tally.broken,
        "requests": tally.requests,
        "faults": dict(tally.acts),
        "virtual_seconds": round(tally.seconds, 1),
        "seconds": round(took, 2),
        "worlds_per_s": round(tally.worlds / took, 1),
        "points": len(POINTS),
        "points_hit": tally.points_hit,
        "points_missed": [str(point) for point in tally.points_missed],
        "failing": {str(each.plan.seed): [str(found) for found in each.violations] for each in tally.failing},
    }


def _show(tally: Tally, took: float) -> None:
    for outcome in sorted(tally.failing, key=lambda each: each.plan.seed)[:SHOWN]:
        _show_world(outcome)
    table = Table(box=None, pad_edge=False, show_header=False)
    faults = ", ".join(f"{count:,} {act}" for act, count in tally.acts.most_common())
    missed = f"; never: {', '.join(map(str, tally.points_missed))}" if tally.points_missed else ""
    for name, text in (
        ("worlds", f"{tally.worlds:,}, {tally.broken:,} of them broken; {len(tally.failing)} with broken promises"),
        ("requests", f"{tally.requests:,}"),
        ("faults", faults or "none"),
        ("failpoints", f"{tally.points_hit} of {len(POINTS)} were passed{missed}"),
        ("time", f"{tally.seconds:,.0f} s passed in {took:.1f} s; {tally.worlds / took:.1f} worlds/s"),
    ):
        table.add_row(name, text)
    answers.print(table)


def _show_world(outcome: Outcome) -> None:
    plan = outcome.plan
    answers.print(f"[bold]seed {plan.seed}[/bold]: {plan.shape}")
    for line in outcome.happened:
        answers.print(f"  happened: {line}")
    for found in outcome.violations:
        answers.print(f"  [red]{found.kind}[/red]: {found.text}", markup=True)
    answers.print(f"  replay: penstock faults --seed {plan.seed}{plan.twist} --story")
