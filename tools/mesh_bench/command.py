"""Compare the overhead of the mesh with that of routers, in one run with the same load generator.

A mesh of `penstock up` with the simulated engine, and each router before a mock worker, run in turns. CPU is that of
the processes between client and worker. Peers are installed on first use below --cache, each in its own environment.
The default takes about fifteen minutes, without installations.
"""

import argparse
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from engine_bench.command import comma_list, machine_lock, print_progress
from mesh_bench.comparison import ComparisonPlan, SystemRun, compare
from mesh_bench.native import CompilerMissing, compiled
from mesh_bench.peers import DIRECT, PEERS, PENSTOCK, PENSTOCK_MTLS
from mesh_bench.points import POINTS
from mesh_bench.report import plot, print_tables
from mesh_bench.summary import judge, summarise

_MIN_WIDTH = 120  # columns


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))  # by an exception, so that every process is stopped
    parsed = _parser().parse_args()
    try:
        for name in ("load", "upstream"):
            compiled(name, parsed.cache)
    except CompilerMissing as error:
        sys.exit(str(error))
    plan = ComparisonPlan(
        systems=[DIRECT, PENSTOCK, *([PENSTOCK_MTLS] if parsed.mtls else []), *parsed.peers],
        points=[point for name, point in POINTS.items() if name in parsed.only],
        repeat=parsed.repeat,
        cache=parsed.cache,
        base_port=parsed.port,
    )
    with machine_lock(parsed.cache):
        runs = compare(plan, print_progress)
    figures = summarise(runs)
    verdicts = judge(figures)
    print_tables(figures, verdicts, Console(width=max(Console().width, _MIN_WIDTH)))
    if parsed.json:
        document = {
            "figures": {name: asdict(each) for name, each in figures.items()},
            "goals": [asdict(each) for each in verdicts],
            "runs": {name: [_to_json(run) for run in each] for name, each in runs.items()},
        }
        parsed.json.write_text(json.dumps(document, indent=1), encoding="utf-8")
    if parsed.plot:
        plot(figures, parsed.plot)


def _to_json(run: SystemRun) -> dict[str, object]:
    return {**asdict(run), "results": {name: asdict(each) for name, each in run.results.items()}}


def _parser() -> argparse.ArgumentParser:
    cache = os.environ.get("PENSTOCK_BENCH_CACHE", "~/.cache/penstock/bench")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def add(flag: str, help_: str, **options: object) -> None:
        parser.add_argument(flag, help=help_, **options)  # type: ignore[arg-type]

    add("--peers", f"of {','.join(PEERS)} (all); empty: none", type=_peers, default=list(PEERS))
    add("--only", f"of {','.join(POINTS)} (all)", type=comma_list(POINTS), default=list(POINTS))
    add("--repeat", "runs of every system (%(default)s)", type=int, default=3)
    add("--mtls", "also run a mesh with mTLS between its processes", action="store_true")
    add("--port", "base port of the mesh (%(default)s)", type=int, default=36_000)
    add("--cache", "environments and programs (%(default)s)", type=Path, default=Path(cache).expanduser())
    add("--json", "all figures of every run", type=Path, metavar="FILE")
    add("--plot", "bar charts, as .png or .svg", type=Path, metavar="FILE")
    return parser


def _peers(text: str) -> list[str]:
    return comma_list(PEERS)(text) if text else []
