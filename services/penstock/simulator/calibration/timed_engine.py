"""An engine whose steps are timed, and what of a time was the engine's own."""

import time
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from torch import Tensor

from penstock.bench.cpu_wait import cpu_use_of
from penstock.worker.engine.batching.plan import StepPlan
from penstock.worker.engine.interface import StepResult
from penstock.worker.engine.simulated.step_time import StepWork, work_of
from penstock.worker.engine.torch.engine import TorchEngine
from penstock.worker.engine.torch.runner import Runner

MAX_CPU_WAIT_SHARE = 0.03  # of a step's time: what its threads may have waited for a core
MIN_UNDISTURBED_STEPS = 3  # calm steps for their wall time to count


class StepTiming(NamedTuple):
    """One step. Times in s."""

    wall_s: float
    cpu_s: float  # of all threads
    forward_s: float  # wall time inside the model
    cpu_wait_s: float  # of all threads, for a core that others had
    work: StepWork


class TimedEngine:
    """Steps an engine; the model's part of a step is timed apart."""

    def __init__(self, engine: TorchEngine) -> None:
        self.engine = engine
        self._runner = _TimedRunner(engine.runner)
        engine.runner = self._runner

    def step(self) -> tuple[StepResult, StepTiming]:
        self._runner.forward_s = 0.0
        waited, cpu, wall = cpu_use_of(["self"]).waited_s, time.process_time(), time.perf_counter()
        result = self.engine.step()
        spent = time.perf_counter() - wall, time.process_time() - cpu
        turn = *spent, self._runner.forward_s, cpu_use_of(["self"]).waited_s - waited
        plan = self._runner.plan
        return result, StepTiming(*turn, work_of(plan.decodes, plan.prefills) if plan else StepWork(0, 0, 0, 0))

    def run_to_end(self) -> None:
        """Let everybody go on to the end, and hand out the receipts of those that were cancelled."""
        while self.engine.has_work:
            self.engine.step()


class _TimedRunner:
    """Satisfies `Runner`."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.plan: StepPlan | None = None
        self.forward_s = 0.0

    def forward(self, plan: StepPlan) -> Tensor:
        start = time.perf_counter()
        logits = self._runner.forward(plan)
        self.forward_s = time.perf_counter() - start
        self.plan = plan
        return logits


def undisturbed_steps(timings: Iterable[StepTiming]) -> list[StepTiming]:
    """Those that neighbours took no core from."""
    return [turn for turn in timings if turn.cpu_wait_s <= MAX_CPU_WAIT_SHARE * turn.wall_s]


def effective_cores(timings: Sequence[StepTiming]) -> float:
    """Cores that the engine computes on where it is let: in its typical calm step, or in its best one."""
    shares = [turn.cpu_s / turn.wall_s for turn in undisturbed_steps(timings)]
    return median(shares) if shares else max(turn.cpu_s / turn.wall_s for turn in timings)


def typical_duration_s(timings: Sequence[StepTiming], cores: float, min_steps: int = MIN_UNDISTURBED_STEPS) -> float:
    """What such a step takes with the machine to itself, s: by the wall where it was calm often enough, else by CPU."""
    undisturbed = undisturbed_steps(timings)
    if len(undisturbed) >= min_steps:
        return median(turn.wall_s for turn in undisturbed)
    return median(min(turn.cpu_s / cores, turn.wall_s) for turn in timings)


def mean_work(timings: Sequence[StepTiming]) -> StepWork:
    """The mean: decodes read a position more at every step."""
    return StepWork(*(round(sum(each) / len(timings)) for each in zip(*(turn.work for turn in timings), strict=True)))
