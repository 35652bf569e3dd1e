"""What `penstock` shows a person: the mesh's table and a request's timeline."""

import os
import sys

from rich.console import Console
from rich.table import Table

from penstock.local_mesh.mesh import LocalMesh
from penstock.v1.inference_pb2 import Timeline

BAR_COLUMNS = 24  # columns of the longest bar

stderr_console = Console(stderr=True, highlight=False, soft_wrap=True)  # progress and tables; stdout is for answers
# A file or a pipe has no width, and a table cut to rich's 80 columns would lose figures there.
stdout_console = Console(
    highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
)


def mesh_table(mesh: LocalMesh, health: dict[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("tier", "process", "pid", "address", "health"):
        table.add_column(column, justify="right" if column == "pid" else "left")
    for child in mesh.processes.children:
        spec = child.spec
        address = f"{spec.address}  http {spec.http}" if spec.http else spec.address
        table.add_row(spec.tier, spec.name, str(child.process.pid), address, health.get(spec.name, ""))
    return table


def timeline_table(timeline: Timeline, latency_s: float) -> Table:
    """Bars for each stage; `seen` is the request's latency as its client measured it, in s."""
    total = max(latency_s, 1e-9)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, side in (("tier", "left"), ("stage", "left"), ("ms", "right"), ("share", "right"), ("", "left")):
        table.add_column(column, justify=side)  # type: ignore[arg-type]  # rich names its own literals
    for tier, name, start, length in _timeline_rows(timeline, latency_s):
        bar = " " * round(BAR_COLUMNS * start / total) + "█" * max(1, round(BAR_COLUMNS * length / total))
        table.add_row(tier, name, f"{length * 1e3:.1f}", f"{length / total:.1%}", bar)
    table.add_section()
    inside = sum(length for *_, length in _timeline_rows(timeline, latency_s))
    table.add_row("all", "stages added up", f"{inside * 1e3:.1f}", f"{inside / total:.1%}")
    table.add_row("", "latency seen by the client", f"{latency_s * 1e3:.1f}", "100.0%")
    return table


def _timeline_rows(timeline: Timeline, latency_s: float) -> list[tuple[str, str, float, float]]:
    rows = [(stage.tier, stage.name, duration_s(stage.start), duration_s(stage.length)) for stage in timeline.stages]
    outside = latency_s - duration_s(timeline.total)
    return [*rows, ("network", "client and edge", duration_s(timeline.total), max(0.0, outside))]


def duration_s(duration: object) -> float:
    """Return a protobuf Duration in s."""
    return duration.seconds + duration.nanos * 1e-9  # type: ignore[attr-defined, no-any-return]  # Duration
