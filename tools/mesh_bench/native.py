"""Compiles the load generator and the mock worker on first use, and runs the load generator."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mesh_bench.points import BenchPoint

SOURCES = Path(__file__).parent
_MARGIN_S = 30.0  # s that a run may exceed its own duration


class CompilerMissing(Exception):
    """There is no C compiler. The message says what to install."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTarget:
    """Where a load goes, and the processes whose CPU time is read, by tier."""

    port: int
    model: str
    header: str  # one header line; empty: none
    processes: Mapping[str, Sequence[int]]  # pids by tier
    grpc: str = ""  # host:port for a session; empty: it has none
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """One window of load. A `wrong` answer has another number of tokens than asked for."""

    wall_s: float
    requests: int  # finished
    tokens: float
    events: int
    errors: int
    wrong: int
    overrun: int  # requests that were not sent, because too many were open
    first_p50_us: float  # from the request to its first token, or to its whole answer if it is not a stream
    first_p99_us: float
    cpu_us: Mapping[str, float]  # by tier; "load" is the generator


def compiled(name: str, cache: Path) -> Path:
    """Return the program of `name`.c, compiled if it is missing or older. Raises CompilerMissing."""
    source, program = SOURCES / f"{name}.c", cache / name
    if program.is_file() and program.stat().st_mtime >= source.stat().st_mtime:
        return program
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise CompilerMissing("bench_mesh compiles its load generator and found no C compiler; install gcc or set CC")
    cache.mkdir(parents=True, exist_ok=True)
    subprocess.run([compiler, "-O2", "-o", str(program), str(source)], check=True)
    return program


def run_load(program: Path, target: LoadTarget, point: BenchPoint) -> LoadResult:
    mode, count = ("r", point.rate) if point.rate else ("c", point.concurrent)
    options = [target.port, mode, count, point.seconds, point.warmup_s, point.tokens, int(point.is_stream)]
    command = [str(program), *map(str, options), target.model, target.header, *_meters(target)]
    return _result_of(command, point)


def run_session(python: str, target: LoadTarget, point: BenchPoint) -> LoadResult:
    """Load the edge over one session of the client library, in a process of its own."""
    options = [target.grpc, target.key, target.model, point.concurrent, point.seconds, point.warmup_s, point.tokens]
    command = [python, "-P", "-m", "mesh_bench.session_load", *map(str, options), *_meters(target)]
    return _result_of(command, point)


def parse_result(text: str) -> LoadResult:
    """Raises ValueError or TypeError for text that is not the output of a load generator."""
    return LoadResult(**json.loads(text))


def _meters(target: LoadTarget) -> list[str]:
    return [f"{tier}={pid}" for tier, pids in target.processes.items() for pid in pids]


def _result_of(command: Sequence[str], point: BenchPoint) -> LoadResult:
    timeout = point.warmup_s + point.seconds + _MARGIN_S
    path = os.pathsep.join([str(SOURCES.parent), str(SOURCES.parents[1] / "services")])
    ran = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, timeout=timeout, env={**os.environ, "PYTHONPATH": path}
    )
    return parse_result(ran.stdout)
