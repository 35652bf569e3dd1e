"""Tables and a bar chart of a comparison."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mesh_bench.summary import SystemFigures, Verdict
from penstock.bench.plot import new_figure

# Column of the table: title, attribute, decimals.
_COLUMNS = (
    ("light us/token", "light_token_us", 1),
    ("light us/request", "light_request_us", 0),
    ("loaded us/token", "loaded_token_us", 1),
    ("max us/token", "max_token_us", 1),
    ("max us/request", "max_request_us", 0),
    ("requests/s", "max_rate", 0),
    ("tokens/s", "max64_token_rate", 0),
    ("JSON us/request", "json_request_us", 0),
    ("JSON requests/s", "json_rate", 0),
    ("TTFT + p50 us", "added_first_p50_us", 0),
    ("TTFT + p99 us", "added_first_p99_us", 0),
    ("session us/token", "session_token_us", 1),
    ("session edge", "session_edge_token_us", 1),
    ("session at 64", "session64_token_us", 1),
    ("session client", "session_client_token_us", 1),
    ("idle us/s", "idle_us_s", 0),
    ("RSS MB", "memory_mb", 0),
    ("failed", "failed", 0),
)


def print_tables(figures: Mapping[str, SystemFigures], verdicts: Sequence[Verdict], console: Console) -> None:
    table = Table(title="CPU of the tiers between client and worker; medians", title_justify="left")
    table.add_column("figure", no_wrap=True)
    for name in figures:
        table.add_column(name, justify="right")
    for title, attribute, decimals in _COLUMNS:
        table.add_row(title, *(number(getattr(each, attribute), decimals) for each in figures.values()))
    console.print(table)
    _print_tiers(figures, console)
    goals = Table(title="Goals", title_justify="left")
    for title in ("figure", "measured", "goal", "verdict"):
        goals.add_column(title)
    for each in verdicts:
        goals.add_row(each.figure, number(each.measured, 2), each.goal, "met" if each.is_met else "missed")
    console.print(goals)


def number(value: float | None, decimals: int) -> str:
    return "-" if value is None else f"{value:,.{decimals}f}"


def _print_tiers(figures: Mapping[str, SystemFigures], console: Console) -> None:
    table = Table(title="us/request by tier", title_justify="left")
    for title in ("system", "tier", "light, 1 token", "64 at once, 1 token"):
        table.add_column(title, justify="left" if title in {"system", "tier"} else "right")
    for name, each in figures.items():
        for tier in dict.fromkeys([*each.light_request_tiers_us, *each.max_request_tiers_us]):
            light, most = each.light_request_tiers_us.get(tier), each.max_request_tiers_us.get(tier)
            table.add_row(name, tier, number(light, 0), number(most, 0))
    console.print(table)


def plot(figures: Mapping[str, SystemFigures], path: Path) -> None:
    """Plot CPU per token and per request on logarithmic axes."""
    charts = {"us/token, light": "light_token_us", "us/token, loaded": "loaded_token_us"}
    charts |= {"us/request, light": "light_request_us", "us/request, 64 at once": "max_request_us"}
    with new_figure(path, 2, 2, height=7.0) as axes:
        for axis, (title, attribute) in zip(axes, charts.items(), strict=True):
            bars = {name: value for name, each in figures.items() if (value := getattr(each, attribute))}
            axis.bar(list(bars), list(bars.values()))
            axis.set(title=title, yscale="log")
            axis.tick_params(axis="x", labelrotation=30)
