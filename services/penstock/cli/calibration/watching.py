"""An engine whose steps are timed, and what of a time was the engine's own."""

import time
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from torch import Tensor

from penstock.cli.bench.report import quantile
from penstock.worker.engine.interface import StepResult
from penstock.worker.engine.plan import StepPlan
from penstock.worker.engine.runner import Runner
from penstock.worker.engine.step_law import Work, work_of
from penstock.worker.engine.torch_engine import TorchEngine

CALM = 0.85  # of the cores that the engine can have
FEWEST = 3  # calm steps for their wall time to count


class Turn(NamedTuple):
    """One step. Times in s."""

    wall: float
    cpu: float  # of all threads
    forward: float  # wall time inside the model
    work: Work


class WatchedEngine:
    """Steps an engine; the model's part of a step is timed apart."""

    def __init__(self, engine: TorchEngine) -> None:
        self.engine = engine
        self._runner = _WatchedRunner(engine.runner)
        engine.runner = self._runner

    def step(self) -> tuple[StepResult, Turn]:
        self._runner.seconds = 0.0
        wall, cpu = time.perf_counter(), time.process_time()
        result = self.engine.step()
        turn = time.perf_counter() - wall, time.process_time() - cpu, self._runner.seconds
        plan = self._runner.plan
        return result, Turn(*turn, work_of(plan.decodes, plan.prefills) if plan else Work(0, 0, 0, 0))

    def finish(self) -> None:
        """Let everybody go on to the end, and hand out the receipts of those that were cancelled."""
        while self.engine.has_work:
            self.engine.step()


class _WatchedRunner:
    """Satisfies `Runner`."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.plan: StepPlan | None = None
        self.seconds = 0.0

    def forward(self, plan: StepPlan) -> Tensor:
        start = time.perf_counter()
        logits = self._runner.forward(plan)
        self.seconds = time.perf_counter() - start
        self.plan = plan
        return logits


def cores_had(turns: Iterable[Turn]) -> float:
    """Cores that the engine computes on where it is let: the best of its steps say so."""
    return quantile([turn.cpu / turn.wall for turn in turns], 0.95)


def calm(turns: Sequence[Turn], cores: float) -> list[Turn]:
    """Those that had their cores: a step that neighbours took a core from has less CPU time for its wall time."""
    return [turn for turn in turns if turn.cpu / turn.wall >= CALM * cores]


def settled(turns: Sequence[Turn], cores: float) -> float:
    """What such a step takes with the machine to itself, s: by the wall where it was calm often enough, else by CPU."""
    undisturbed = calm(turns, cores)
    if len(undisturbed) >= FEWEST:
        return median(turn.wall for turn in undisturbed)
    return median(turn.cpu for turn in turns) / cores


def typical_work(turns: Sequence[Turn]) -> Work:
    """The mean: decodes read a position more at every step."""
    return Work(*(round(sum(each) / len(turns)) for each in zip(*(turn.work for turn in turns), strict=True)))
