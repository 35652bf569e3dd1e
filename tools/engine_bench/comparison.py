"""The comparison: for each checkpoint and dtype, every engine runs every cell in turn, for several rounds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from engine_bench.cells import BenchCell, CellFigures, figures_of
from engine_bench.checkpoints import write_checkpoint
from engine_bench.disturbance import least_disturbed
from engine_bench.drivers.protocol import DriverSetup, MachineCeilings
from engine_bench.engines import DriverProcess
from engine_bench.environments import PeerUnavailable, install_environment
from engine_bench.peers import CEILINGS, PEERS, EnginePeer
from penstock.bench.cpu_wait import cpu_use_of

ProgressFn = Callable[[str], None]
Answer = TypeVar("Answer")
_WARM_UP_TOKENS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPlan:
    peers: Sequence[str]
    models: Sequence[str]
    dtypes: Sequence[str]
    cells: Sequence[BenchCell]
    rounds: int
    threads: int
    cache: Path


@dataclass(frozen=True, slots=True)
class ComparisonRound:
    """One run of every engine at a cell, and the ceilings of the machine just before."""

    ceilings: MachineCeilings
    figures: Mapping[str, CellFigures]  # by peer; without those that failed


@dataclass(slots=True)
class Series:
    """All rounds of one checkpoint in one dtype."""

    model: str
    dtype: str
    folder: Path
    rounds: dict[BenchCell, list[ComparisonRound]] = field(default_factory=dict)
    first_tokens: dict[tuple[BenchCell, str], Sequence[int]] = field(default_factory=dict)


def compare(plan: ComparisonPlan, report_progress: ProgressFn) -> list[Series]:
    environments = find_environments(plan, report_progress)
    series = []
    for model in plan.models:
        report_progress(f"{model}: checkpoint")
        folder = write_checkpoint(model, plan.cache / "models")
        series += [_compare(plan, Series(model, dtype, folder), environments, report_progress) for dtype in plan.dtypes]
    return series


def find_environments(plan: ComparisonPlan, report_progress: ProgressFn) -> dict[str, Path]:
    """Return the environments of the peers that can be installed; report the others with the reason."""
    found = {}
    for name in plan.peers:
        try:
            found[name] = install_environment(PEERS[name], plan.cache, report_progress)
        except PeerUnavailable as why:
            report_progress(f"{name}: omitted, {why}")
    return found


def _compare(
    plan: ComparisonPlan, series: Series, environments: Mapping[str, Path], report_progress: ProgressFn
) -> Series:
    setup = DriverSetup(
        model=str(series.folder),
        dtype=series.dtype,
        threads=plan.threads,
        max_concurrency=max(cell.concurrency for cell in plan.cells),
        max_context=max(cell.prompt_tokens + cell.output_tokens for cell in plan.cells),
    )
    turns = _EngineTurns(series, setup, plan.cache, report_progress)
    try:
        for name, folder in environments.items():
            turns.start(PEERS[name], folder)
        for cell in plan.cells:
            turns.warm_up(cell)
            series.rounds[cell] = [turns.run_round(cell, number) for number in range(1, plan.rounds + 1)]
    finally:
        turns.close()
    return series


class _EngineTurns:
    """Runs the engines of one series in turn. An engine that fails is omitted from then on.

    Raises PeerUnavailable if the ceilings of the machine cannot be measured.
    """

    def __init__(self, series: Series, setup: DriverSetup, cache: Path, report_progress: ProgressFn) -> None:
        self._series = series
        self._setup = setup
        self._logs = cache / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._report_progress = report_progress
        self._label = f"{series.model} {series.dtype}"
        self._engines: dict[str, DriverProcess] = {}
        self._ceilings_engine = self._load(CEILINGS, install_environment(CEILINGS, cache, report_progress))

    def start(self, peer: EnginePeer, folder: Path) -> None:
        self._report_progress(f"{self._label}: loading into {peer.name}")
        try:
            self._engines[peer.name] = self._load(peer, folder)
        except PeerUnavailable as why:
            self._report_progress(f"{self._label}: {peer.name} is omitted, {why}")

    def _load(self, peer: EnginePeer, folder: Path) -> DriverProcess:
        return DriverProcess(peer, folder, self._setup, self._logs / f"{peer.name} {self._label}.log")

    def warm_up(self, cell: BenchCell) -> None:
        for name in list(self._engines):
            self._try_engine(
                name, lambda engine: engine.run_cell(BenchCell(cell.concurrency, cell.prompt_tokens, _WARM_UP_TOKENS))
            )

    def run_round(self, cell: BenchCell, number: int) -> ComparisonRound:
        ceilings = self._ceilings_engine.measure_ceilings(cell)
        results = {name: self._run_engine(name, cell) for name in list(self._engines)}
        done = {name: result for name, result in results.items() if result}
        summary = ", ".join(
            f"{name} {result.throughput:,.0f} tok/s {result.step_ms:.1f} ms" for name, result in done.items()
        )
        self._report_progress(f"{self._label} {cell}, round {number}: {summary}")
        return ComparisonRound(ceilings, done)

    def close(self) -> None:
        for engine in (self._ceilings_engine, *self._engines.values()):
            engine.close()

    def _run_engine(self, name: str, cell: BenchCell) -> CellFigures | None:
        def take(engine: DriverProcess) -> CellFigures:
            trace, wait_share = least_disturbed(lambda: engine.run_cell(cell), lambda: cpu_use_of([engine.pid]))
            self._series.first_tokens[cell, name] = trace.first_tokens
            return figures_of(cell, trace, wait_share)

        return self._try_engine(name, take)

    def _try_engine(self, name: str, call: Callable[[DriverProcess], Answer]) -> Answer | None:
        """Return the result; None if the engine fails, which is reported, and it is not run again."""
        try:
            return call(self._engines[name])
        except (PeerUnavailable, ValueError) as why:
            self._report_progress(f"{self._label}: {name} is omitted from now on, {why}")
            self._engines.pop(name).close()
            return None
