"""Tables of the command line: the processes of a mesh, and the timeline of a request."""

import os
import sys

from rich.console import Console
from rich.table import Table

from penstock.bench.tables import new_table
from penstock.chassis.durations import seconds_of
from penstock.local_mesh.mesh import LocalMesh
from penstock.v1.inference_pb2 import Timeline

BAR_COLUMNS = 24  # width of the longest bar

stderr_console = Console(stderr=True, highlight=False, soft_wrap=True)  # for progress; stdout is for results
# A file or a pipe has no width, and rich would cut tables to 80 columns.
stdout_console = Console(
    highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
)


def mesh_table(mesh: LocalMesh, health: dict[str, str]) -> Table:
    table = new_table("tier", "process", "address", "health", numbers=("pid",))
    for child in mesh.processes.children:
        spec = child.spec
        address = f"{spec.address}  http {spec.http}" if spec.http else spec.address
        table.add_row(spec.tier, spec.name, address, health.get(spec.name, ""), str(child.process.pid))
    return table


def timeline_table(timeline: Timeline, latency_s: float) -> Table:
    """Show a bar for each stage; `latency_s` is the latency that the client measured."""
    total = max(latency_s, 1e-9)
    table = new_table("tier", "stage", numbers=("ms", "share"))
    table.add_column("")
    for tier, name, start, length in _timeline_rows(timeline, latency_s):
        bar = " " * round(BAR_COLUMNS * start / total) + "█" * max(1, round(BAR_COLUMNS * length / total))
        table.add_row(tier, name, f"{length * 1e3:.1f}", f"{length / total:.1%}", bar)
    table.add_section()
    inside = sum(length for *_, length in _timeline_rows(timeline, latency_s))
    table.add_row("all", "sum of the stages", f"{inside * 1e3:.1f}", f"{inside / total:.1%}")
    table.add_row("", "latency at the client", f"{latency_s * 1e3:.1f}", "100.0%")
    return table


def _timeline_rows(timeline: Timeline, latency_s: float) -> list[tuple[str, str, float, float]]:
    rows = [(stage.tier, stage.name, seconds_of(stage.start), seconds_of(stage.length)) for stage in timeline.stages]
    outside = latency_s - seconds_of(timeline.total)
    return [*rows, ("network", "client and edge", seconds_of(timeline.total), max(0.0, outside))]
