"""Compare our engine with others on this machine, on the same checkpoints, in one run.

Every engine runs in its own process with the same number of threads. The engines run one at a time, in turn, for
several rounds. Peers are installed on first use below --cache, each in its own environment.
"""

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from engine_bench.cells import context_cells, generation_cells
from engine_bench.checkpoints import RANDOM_MODELS, SMOLLM2, write_checkpoint
from engine_bench.comparison import ComparisonPlan, compare
from engine_bench.engines import driver_environment
from engine_bench.peers import PEERS
from engine_bench.report import plot, print_tables
from engine_bench.roofline import DTYPES
from engine_bench.summary import summarise, to_json

_MODELS = (*RANDOM_MODELS, SMOLLM2)
_CELL_SETS = {"generate": generation_cells, "context": context_cells}
_MIN_WIDTH = 100  # columns, so that no cell of a table wraps


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))  # by an exception, so that every engine process is stopped
    parsed = _parser().parse_args()
    if parsed.profile:
        _profile_step(parsed)
    else:
        _compare(parsed)


def _parser() -> argparse.ArgumentParser:
    cache = os.environ.get("PENSTOCK_BENCH_CACHE", "~/.cache/penstock/bench")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def add(flag: str, help_: str, **options: object) -> None:
        parser.add_argument(flag, help=help_, **options)  # type: ignore[arg-type]

    add("--peers", f"of {','.join(PEERS)} (all)", type=comma_list(PEERS), default=list(PEERS))
    add("--models", f"of {','.join(_MODELS)} (15M,125M)", type=comma_list(_MODELS), default=list(RANDOM_MODELS))
    add("--dtype", "bfloat16, float32 or both, joined by a comma", type=comma_list(DTYPES), default=["bfloat16"])
    add(
        "--cells",
        "generate: 128 + 128 tokens; context: steps at 1,024",
        type=comma_list(_CELL_SETS),
        default=list(_CELL_SETS),
    )
    add("--concurrent", "requests at once (1,8,32)", type=_integer_list, default=[1, 8, 32])
    add("--rounds", "runs of every engine at every cell (%(default)s)", type=int, default=3)
    add("--threads", "of every engine (%(default)s)", type=int, default=len(os.sched_getaffinity(0)))
    add("--cache", "environments, checkpoints and logs (%(default)s)", type=Path, default=Path(cache).expanduser())
    add("--json", "all figures of every round", type=Path, metavar="FILE")
    add("--plot", "bar charts, as .png or .svg", type=Path, metavar="FILE")
    add("--profile", "profile a decode step of our engine at this batch size instead", type=int, metavar="BATCH")
    return parser


def comma_list(known: Iterable[str]) -> Callable[[str], list[str]]:
    names = tuple(known)

    def chosen(text: str) -> list[str]:
        unknown = [name for name in text.split(",") if name not in names]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is unknown; choose from {', '.join(names)}")
        return text.split(",")

    return chosen


def _integer_list(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def _compare(parsed: argparse.Namespace) -> None:
    plan = ComparisonPlan(
        peers=parsed.peers,
        models=parsed.models,
        dtypes=parsed.dtype,
        cells=[cell for kind in parsed.cells for cell in _CELL_SETS[kind](parsed.concurrent)],
        rounds=parsed.rounds,
        threads=parsed.threads,
        cache=parsed.cache,
    )
    with machine_lock(parsed.cache):
        series = compare(plan, print_progress)
    rows = summarise(series)
    print_tables(rows, plan.peers, Console(width=max(Console().width, _MIN_WIDTH)))
    if parsed.json:
        parsed.json.write_text(json.dumps(to_json(rows, series), indent=1), encoding="utf-8")
    if parsed.plot:
        plot(rows, plan.peers, parsed.plot)


@contextmanager
def machine_lock(cache: Path) -> Iterator[None]:
    """Wait until no other comparison runs on this machine, because two would disturb each other."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print_progress("another comparison runs on this machine; waiting until it ends")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _profile_step(parsed: argparse.Namespace) -> None:
    """Profile in a separate process, with the environment variables of a comparison."""
    for model in parsed.models:
        folder = write_checkpoint(model, parsed.cache / "models")
        for dtype in parsed.dtype:
            arguments = [str(folder), dtype, str(parsed.profile), str(parsed.threads)]
            command = [sys.executable, "-P", "-m", "engine_bench.profile_step", *arguments]
            with machine_lock(parsed.cache):
                subprocess.run(
                    command, check=True, env=driver_environment(os.environ, Path(sys.prefix), {}, parsed.threads)
                )


def print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
