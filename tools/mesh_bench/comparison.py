"""Runs the systems in turns: each repetition starts every system once and measures all points."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from engine_bench.environments import PeerUnavailable, install_environment
from mesh_bench.native import LoadResult, LoadTarget, compiled, run_load, run_session
from mesh_bench.peers import DIRECT, PEERS, PENSTOCK, PENSTOCK_MTLS
from mesh_bench.points import BenchPoint
from mesh_bench.processes import cpu_us_of, memory_mb, wait_idle
from mesh_bench.systems import MeshSystem, RouterSystem, System

_IDLE_S = 2.0  # of the measurement without load
_WARMUP = BenchPoint(name="warm-up", step_ms=0.0, concurrent=8, tokens=4, seconds=1.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPlan:
    systems: Sequence[str]
    points: Sequence[BenchPoint]
    repeat: int
    cache: Path
    base_port: int


@dataclass(slots=True, kw_only=True)
class SystemRun:
    """One repetition of one system. CPU of a point excludes the CPU of an idle system."""

    results: dict[str, LoadResult] = field(default_factory=dict)  # by point
    cpu_us: dict[str, dict[str, float]] = field(default_factory=dict)  # by point and tier, above idle
    idle_us_s: dict[str, float] = field(default_factory=dict)  # us/s by tier
    memory_mb: dict[str, float] = field(default_factory=dict)  # by tier


def compare(plan: ComparisonPlan, report_progress: Callable[[str], None]) -> dict[str, list[SystemRun]]:
    """Return the runs of each system. A system that cannot run is omitted, with the reason on stderr."""
    runs: dict[str, list[SystemRun]] = {name: [] for name in plan.systems}
    unavailable: set[str] = set()
    for turn in range(plan.repeat):
        for name in plan.systems:
            if name in unavailable:
                continue
            report_progress(f"{turn + 1}/{plan.repeat} {name}")
            try:
                runs[name].append(_run_system(name, plan, report_progress))
            except PeerUnavailable as reason:
                report_progress(f"{name} is omitted: {reason}")
                unavailable.add(name)
    return {name: each for name, each in runs.items() if each}


def _run_system(name: str, plan: ComparisonPlan, report_progress: Callable[[str], None]) -> SystemRun:
    with TemporaryDirectory(prefix="mesh_bench_") as folder:
        system = _open(name, plan, Path(folder), report_progress)
        with closing(system):
            return _measure(system, plan, is_mesh=isinstance(system, MeshSystem))


def _open(name: str, plan: ComparisonPlan, folder: Path, report_progress: Callable[[str], None]) -> System:
    if name in {PENSTOCK, PENSTOCK_MTLS}:
        return MeshSystem(folder=folder, base_port=plan.base_port, is_mutual=name == PENSTOCK_MTLS)
    peer = None if name == DIRECT else PEERS[name]
    environment = install_environment(peer, plan.cache, report_progress) if peer else Path(sys.prefix)
    return RouterSystem(peer, environment, compiled("upstream", plan.cache), folder)


def _measure(system: System, plan: ComparisonPlan, *, is_mesh: bool) -> SystemRun:
    run, load = SystemRun(), compiled("load", plan.cache)
    for step_ms, points in groupby(plan.points, key=lambda point: point.step_ms):
        target = system.at_step(step_ms)
        run_load(load, target, _WARMUP)
        idle = _idle_us_s(target)
        run.idle_us_s = run.idle_us_s or idle
        for point in points:
            if point.is_session and not is_mesh:
                continue
            wait_idle(_pids(target))
            result = run_session(sys.executable, target, point) if point.is_session else run_load(load, target, point)
            run.results[point.name] = result
            run.cpu_us[point.name] = above_idle(result, idle)
        run.memory_mb = {tier: memory_mb(pids) for tier, pids in target.processes.items()}
    return run


def above_idle(result: LoadResult, idle_us_s: dict[str, float]) -> dict[str, float]:
    """Return the CPU of each tier in us, less the CPU of the same time without load."""
    return {tier: max(0.0, used - idle_us_s.get(tier, 0.0) * result.wall_s) for tier, used in result.cpu_us.items()}


def _idle_us_s(target: LoadTarget) -> dict[str, float]:
    wait_idle(_pids(target))
    begin, before = time.monotonic(), {tier: cpu_us_of(pids) for tier, pids in target.processes.items()}
    time.sleep(_IDLE_S)
    wall = time.monotonic() - begin
    return {tier: (cpu_us_of(pids) - before[tier]) / wall for tier, pids in target.processes.items()}


def _pids(target: LoadTarget) -> list[int]:
    return [pid for pids in target.processes.values() for pid in pids]
