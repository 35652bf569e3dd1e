"""Tables and bar charts of a comparison, one per checkpoint and dtype."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.table import Table

from engine_bench.peers import PEERS
from engine_bench.summary import SummaryRow
from penstock.bench.plot import new_figure

_COLUMNS = ("tok/s", "prefill tok/s", "step ms", "CPU ms/token", "agrees", "CPU wait")


def print_tables(rows: Sequence[SummaryRow], peers: Sequence[str], console: Console) -> None:
    for (model, dtype), group in groupby(rows, key=lambda row: (row.model, row.dtype)):
        table = Table(title=f"{model}, {dtype}: requests at once x (prompt + output tokens)", title_justify="left")
        table.add_column("cell", no_wrap=True)
        table.add_column("engine", no_wrap=True)
        for column in _COLUMNS:
            table.add_column(column, justify="right")
        for row in group:
            _add_rows(table, row, peers)
        console.print(table)


def _add_rows(table: Table, row: SummaryRow, peers: Sequence[str]) -> None:
    for index, name in enumerate(peers):
        table.add_row(str(row.cell) if not index else "", name, *_cells(row, name))
    ratios = row.ratios
    values = (_ratio_text(each) for each in (ratios.throughput, ratios.prefill, ratios.step, ratios.cpu))
    table.add_row("", "[bold]ours / best peer[/bold]", *values, "", "")
    share = f", {row.roofline_share:.0%} of ours" if row.roofline_share else ""
    table.add_row("", f"roofline{share}", "", "", f"{row.roofline_ms:.1f}", "", "", "", end_section=True)


def _cells(row: SummaryRow, name: str) -> list[str]:
    found = row.engines.get(name)
    if found is None:
        return ["-"] * len(_COLUMNS)
    agreeing = f"{row.first_token_agreement[name]:.0%}" if name in row.first_token_agreement else ""
    return [
        f"{found.throughput:,.0f}",
        f"{found.prefill:,.0f}",
        f"{found.step_ms:.1f}",
        f"{found.cpu_ms_per_token:.1f}",
        agreeing,
        f"{found.cpu_wait_share:.0%}",
    ]


def _ratio_text(value: float | None) -> str:
    return "-" if value is None else f"[bold]{value:.2f}x[/bold]"


def plot(rows: Sequence[SummaryRow], peers: Sequence[str], path: Path) -> None:
    """Plot throughput and the duration of a decode step, one row of charts per checkpoint and dtype."""
    groups = [list(group) for _, group in groupby(rows, key=lambda row: (row.model, row.dtype))]
    with new_figure(path, len(groups), 2, width=12.0, height=3.6 * len(groups)) as axes:
        for group, throughput, step in zip(groups, axes[::2], axes[1::2], strict=True):
            title = f"{group[0].model}, {group[0].dtype}"
            _bars(throughput, group, peers, "throughput")
            throughput.set(title=f"{title}: output tokens/s, prefill included")
            _bars(step, group, peers, "step_ms")
            for at, row in enumerate(group):
                step.hlines(row.roofline_ms, at - 0.45, at + 0.45, colors="black", linestyles="dotted")
            step.set(title=f"{title}: decode step, ms (dotted: roofline)")


def _bars(axes: object, group: Sequence[SummaryRow], peers: Sequence[str], value: str) -> None:
    width = 0.8 / len(peers)
    for index, name in enumerate(peers):
        heights = [getattr(row.engines[name], value) if name in row.engines else 0.0 for row in group]
        places = [at + (index - (len(peers) - 1) / 2) * width for at in range(len(group))]
        colour = f"C{list(PEERS).index(name)}"  # an engine has the same colour in every comparison
        axes.bar(places, heights, width, label=name, color=colour)  # type: ignore[attr-defined]
    axes.set_xticks(range(len(group)), [str(row.cell) for row in group], fontsize=8)  # type: ignore[attr-defined]
