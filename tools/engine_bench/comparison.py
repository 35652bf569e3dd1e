"""The comparison itself: for each checkpoint and dtype, every cell by every engine in turn, several rounds over."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psutil

from engine_bench.cells import Cell, Figures, figures
from engine_bench.checkpoints import checkpoint
from engine_bench.drivers.protocol import Ceilings, Setup
from engine_bench.engines import Engine
from engine_bench.environments import PeerUnavailable, environment
from engine_bench.neighbours import least_disturbed, read_times
from engine_bench.peers import CEILINGS, PEERS, Peer

Say = Callable[[str], None]
Answer = TypeVar("Answer")
_WARM_UP_TOKENS = 4
CORES = psutil.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    peers: Sequence[str]
    models: Sequence[str]
    dtypes: Sequence[str]
    cells: Sequence[Cell]
    rounds: int
    threads: int
    cache: Path


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of every engine at a cell, and what the machine could do just before."""

    ceilings: Ceilings
    figures: Mapping[str, Figures]  # by peer; without those that could not


@dataclass(slots=True)
class Series:
    """All rounds of one checkpoint in one dtype."""

    model: str
    dtype: str
    folder: Path
    rounds: dict[Cell, list[Round]] = field(default_factory=dict)
    first_tokens: dict[tuple[Cell, str], Sequence[int]] = field(default_factory=dict)


def compare(plan: Plan, say: Say) -> list[Series]:
    environments = find_environments(plan, say)
    series = []
    for model in plan.models:
        say(f"{model}: checkpoint")
        folder = checkpoint(model, plan.cache / "models")
        series += [_compare(plan, Series(model, dtype, folder), environments, say) for dtype in plan.dtypes]
    return series


def find_environments(plan: Plan, say: Say) -> dict[str, Path]:
    """Of the peers that can be installed; a plain line says why another cannot."""
    found = {}
    for name in plan.peers:
        try:
            found[name] = environment(PEERS[name], plan.cache, say)
        except PeerUnavailable as why:
            say(f"{name}: left out, {why}")
    return found


def _compare(plan: Plan, series: Series, environments: Mapping[str, Path], say: Say) -> Series:
    setup = Setup(
        model=str(series.folder),
        dtype=series.dtype,
        threads=plan.threads,
        concurrent=max(cell.concurrent for cell in plan.cells),
        context=max(cell.prompt + cell.output for cell in plan.cells),
    )
    turns = _Turns(series, setup, plan.cache, say)
    try:
        for name, folder in environments.items():
            turns.start(PEERS[name], folder)
        for cell in plan.cells:
            turns.warm_up(cell)
            series.rounds[cell] = [turns.play(cell, number) for number in range(1, plan.rounds + 1)]
    finally:
        turns.close()
    return series


class _Turns:
    """The engines of one series. One that fails is left out from then on.

    Raises PeerUnavailable when the machine itself cannot be measured.
    """

    def __init__(self, series: Series, setup: Setup, cache: Path, say: Say) -> None:
        self._series = series
        self._setup = setup
        self._logs = cache / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._say = say
        self._label = f"{series.model} {series.dtype}"
        self._engines: dict[str, Engine] = {}
        self._machine = self._load(CEILINGS, environment(CEILINGS, cache, say))

    def start(self, peer: Peer, folder: Path) -> None:
        self._say(f"{self._label}: loading into {peer.name}")
        try:
            self._engines[peer.name] = self._load(peer, folder)
        except PeerUnavailable as why:
            self._say(f"{self._label}: {peer.name} is left out, {why}")

    def _load(self, peer: Peer, folder: Path) -> Engine:
        return Engine(peer, folder, self._setup, self._logs / f"{peer.name} {self._label}.log")

    def warm_up(self, cell: Cell) -> None:
        for name in list(self._engines):
            self._attempt(name, lambda engine: engine.trace(Cell(cell.concurrent, cell.prompt, _WARM_UP_TOKENS)))

    def play(self, cell: Cell, number: int) -> Round:
        ceilings = self._machine.ceilings(cell)
        played = {name: self._turn(name, cell) for name in list(self._engines)}
        done = {name: result for name, result in played.items() if result}
        told = ", ".join(
            f"{name} {result.throughput:,.0f} tok/s {result.step_ms:.1f} ms" for name, result in done.items()
        )
        self._say(f"{self._label} {cell}, round {number}: {told}")
        return Round(ceilings, done)

    def close(self) -> None:
        for engine in (self._machine, *self._engines.values()):
            engine.close()

    def _turn(self, name: str, cell: Cell) -> Figures | None:
        def take(engine: Engine) -> Figures:
            trace, others = least_disturbed(lambda: engine.trace(cell), lambda: read_times(engine.pid), CORES)
            self._series.first_tokens[cell, name] = trace.first_tokens
            return figures(cell, trace, others)

        return self._attempt(name, take)

    def _attempt(self, name: str, ask: Callable[[Engine], Answer]) -> Answer | None:
        """What the engine answers. None: it cannot, which is said, and it is not asked again."""
        try:
            return ask(self._engines[name])
        except (PeerUnavailable, ValueError) as why:
            self._say(f"{self._label}: {name} is left out from here, {why}")
            self._engines.pop(name).close()
            return None
