"""An engine whose steps are timed, and what of a time was the engine's own."""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from torch import Tensor

from penstock.worker.engine.interface import StepResult
from penstock.worker.engine.plan import StepPlan
from penstock.worker.engine.runner import Runner
from penstock.worker.engine.step_law import StepWork, work_of
from penstock.worker.engine.torch_engine import TorchEngine

CALM = 0.03  # of a step's time: what its threads may have waited for a core
FEWEST = 3  # calm steps for their wall time to count
THREADS = Path("/proc/self/task")


class Turn(NamedTuple):
    """One step. Times in s."""

    wall: float
    cpu: float  # of all threads
    forward: float  # wall time inside the model
    waited: float  # of all threads, for a core that others had
    work: StepWork


class WatchedEngine:
    """Steps an engine; the model's part of a step is timed apart."""

    def __init__(self, engine: TorchEngine) -> None:
        self.engine = engine
        self._runner = _WatchedRunner(engine.runner)
        engine.runner = self._runner

    def step(self) -> tuple[StepResult, Turn]:
        self._runner.seconds = 0.0
        waited, cpu, wall = time_waited(), time.process_time(), time.perf_counter()
        result = self.engine.step()
        spent = time.perf_counter() - wall, time.process_time() - cpu
        turn = *spent, self._runner.seconds, time_waited() - waited
        plan = self._runner.plan
        return result, Turn(*turn, work_of(plan.decodes, plan.prefills) if plan else StepWork(0, 0, 0, 0))

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


def time_waited() -> float:
    """s that this process's threads were ready to run and had no core; 0 for ever where the system does not tell."""
    return sum(int(file.read_text().split()[1]) for file in THREADS.glob("*/schedstat")) * 1e-9


def calm(turns: Iterable[Turn]) -> list[Turn]:
    """Those that neighbours took no core from."""
    return [turn for turn in turns if turn.waited <= CALM * turn.wall]


def cores_had(turns: Sequence[Turn]) -> float:
    """Cores that the engine computes on where it is let: in its typical calm step, or in its best one."""
    shares = [turn.cpu / turn.wall for turn in calm(turns)]
    return median(shares) if shares else max(turn.cpu / turn.wall for turn in turns)


def settled(turns: Sequence[Turn], cores: float, fewest: int = FEWEST) -> float:
    """What such a step takes with the machine to itself, s: by the wall where it was calm often enough, else by CPU."""
    undisturbed = calm(turns)
    if len(undisturbed) >= fewest:
        return median(turn.wall for turn in undisturbed)
    return median(min(turn.cpu / cores, turn.wall) for turn in turns)


def typical_work(turns: Sequence[Turn]) -> StepWork:
    """The mean: decodes read a position more at every step."""
    return StepWork(*(round(sum(each) / len(turns)) for each in zip(*(turn.work for turn in turns), strict=True)))
