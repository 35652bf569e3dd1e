"""Run unmodified clients of OpenAI's API against a mesh, and print what works with each.

A mesh of `penstock up` with the default model runs on free ports. Clients are installed on first use below --cache,
each in its own environment. guidellm and aiperf need some hundred megabytes each. Ends with 1 if a client failed.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from client_trials.clients import CLIENTS, Client
from client_trials.environments import prepare
from client_trials.mesh import running_mesh
from client_trials.trial import Trial, run_trial
from engine_bench.command import machine_lock, print_progress
from engine_bench.environments import PeerUnavailable
from mesh_bench.processes import StartFailed

_MIN_WIDTH = 120  # columns


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))  # by an exception, so that every process is stopped
    parsed = _parser().parse_args()
    try:
        with machine_lock(parsed.cache):  # two runs must not install the same client
            trials = _run([CLIENTS[name] for name in parsed.clients or CLIENTS], parsed.cache)
    except StartFailed as failure:
        sys.exit(str(failure))
    if parsed.json:
        print(json.dumps([trial.to_json() for trial in trials], indent=1))
    else:
        print_trials(trials, Console(width=max(Console().width, _MIN_WIDTH)))
    sys.exit(not all(trial.is_passed for trial in trials))


def _run(clients: Sequence[Client], cache: Path) -> list[Trial]:
    trials = []
    with tempfile.TemporaryDirectory(prefix="penstock-clients-") as name, running_mesh(Path(name)) as mesh:
        for client in clients:
            try:
                launch = prepare(client, cache, print_progress)
                print_progress(f"{client.name}: running {client.script}")
                trials.append(run_trial(client, launch, mesh.settings(), Path(name) / f"{client.name}.log"))
            except (PeerUnavailable, OSError) as failure:
                trials.append(Trial(client, failure=str(failure)))
    return trials


def print_trials(trials: Sequence[Trial], console: Console) -> None:
    table = Table("client", "version", "exercised", "result")
    for trial in trials:
        done = ", ".join([*trial.passed, *trial.failed])
        table.add_row(trial.client.name, trial.client.version, escape(done), "passed" if trial.is_passed else "failed")
    console.print(table)
    for trial in trials:
        failures = [*trial.failed.items(), *([("", trial.failure)] if trial.failure else [])]
        for step, error in failures:
            console.print(escape(f"{trial.client.name}{step and f', {step}'}: {error}"), highlight=False)


def _parser() -> argparse.ArgumentParser:
    cache = os.environ.get("PENSTOCK_BENCH_CACHE", "~/.cache/penstock/bench")
    parser = argparse.ArgumentParser(
        prog="tools/try_clients", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clients", nargs="*", metavar="NAME", help=f"of {', '.join(CLIENTS)} (all)", type=_name)
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.add_argument(
        "--cache", help="environments of clients (%(default)s)", type=Path, default=Path(cache).expanduser()
    )
    return parser


def _name(text: str) -> str:
    if text not in CLIENTS:
        raise argparse.ArgumentTypeError(f"{text} is not one of {', '.join(CLIENTS)}")
    return text
