"""Compare our engine with others on this machine, on the same checkpoints, in one run.

Every engine runs in a process of its own with the same number of threads, one at a time, in turns, several rounds
over. Peers are installed on first use below --cache, each in an environment of its own.
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
from engine_bench.checkpoints import RANDOM_MODELS, SMOLLM2, checkpoint
from engine_bench.comparison import Plan, compare
from engine_bench.engines import variables
from engine_bench.peers import PEERS
from engine_bench.report import plot, print_tables
from engine_bench.roofline import BYTES
from engine_bench.summary import as_json, summarise

_MODELS = (*RANDOM_MODELS, SMOLLM2)
_CELLS = {"generate": generation_cells, "context": context_cells}
_WIDTH = 100  # columns at least: a table broken into narrow ones cannot be read


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))  # by an exception, so that no engine computes on alone
    asked = _parser().parse_args()
    if asked.profile:
        _profile(asked)
    else:
        _compare(asked)


def _parser() -> argparse.ArgumentParser:
    cache = os.environ.get("PENSTOCK_BENCH_CACHE", "~/.cache/penstock/bench")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def add(flag: str, help_: str, **options: object) -> None:
        parser.add_argument(flag, help=help_, **options)  # type: ignore[arg-type]

    add("--peers", f"of {','.join(PEERS)} (all)", type=_some_of(PEERS), default=list(PEERS))
    add("--models", f"of {','.join(_MODELS)} (15M,125M)", type=_some_of(_MODELS), default=list(RANDOM_MODELS))
    add("--dtype", "bfloat16, float32 or both, joined by a comma", type=_some_of(BYTES), default=["bfloat16"])
    add("--cells", "generate: 128 + 128 tokens; context: steps at 1,024", type=_some_of(_CELLS), default=list(_CELLS))
    add("--concurrent", "requests at once (1,8,32)", type=_counts, default=[1, 8, 32])
    add("--rounds", "turns of every engine at every cell (%(default)s)", type=int, default=3)
    add("--threads", "of every engine (%(default)s)", type=int, default=len(os.sched_getaffinity(0)))
    add("--cache", "environments, checkpoints and logs (%(default)s)", type=Path, default=Path(cache).expanduser())
    add("--json", "all figures, round by round", type=Path, metavar="FILE")
    add("--plot", "bars, as .png or .svg", type=Path, metavar="FILE")
    add("--profile", "instead: where a decode step of ours spends its time", type=int, metavar="BATCH")
    return parser


def _some_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    names = tuple(known)

    def chosen(text: str) -> list[str]:
        unknown = [name for name in text.split(",") if name not in names]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is not known; choose of {', '.join(names)}")
        return text.split(",")

    return chosen


def _counts(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def _compare(asked: argparse.Namespace) -> None:
    plan = Plan(
        peers=asked.peers,
        models=asked.models,
        dtypes=asked.dtype,
        cells=[cell for kind in asked.cells for cell in _CELLS[kind](asked.concurrent)],
        rounds=asked.rounds,
        threads=asked.threads,
        cache=asked.cache,
    )
    with _alone(asked.cache):
        series = compare(plan, say)
    rows = summarise(series)
    print_tables(rows, plan.peers, Console(width=max(Console().width, _WIDTH)))
    if asked.json:
        asked.json.write_text(json.dumps(as_json(rows, series), indent=1), encoding="utf-8")
    if asked.plot:
        plot(rows, plan.peers, asked.plot)


@contextmanager
def _alone(cache: Path) -> Iterator[None]:
    """Wait until no other comparison runs on this machine: two would measure each other."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another comparison runs on this machine; waiting for its end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _profile(asked: argparse.Namespace) -> None:
    """In a process of its own, with the variables that our engine has in a comparison."""
    for model in asked.models:
        folder = checkpoint(model, asked.cache / "models")
        for dtype in asked.dtype:
            arguments = [str(folder), dtype, str(asked.profile), str(asked.threads)]
            command = [sys.executable, "-P", "-m", "engine_bench.profile_step", *arguments]
            with _alone(asked.cache):
                subprocess.run(command, check=True, env=variables(os.environ, Path(sys.prefix), {}, asked.threads))


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
