"""Times the steps of an engine, and separates its own time from waits for a core."""

import time
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from torch import Tensor

from penstock.bench.cpu_wait import cpu_use_of
from penstock.worker.engine.batching.sequence import StepPlan
from penstock.worker.engine.interface import StepResult
from penstock.worker.engine.simulated.step_time import StepWork, work_of
from penstock.worker.engine.torch.engine import Runner, TorchEngine

MAX_CPU_WAIT_SHARE = 0.03  # of a step's wall time: CPU wait of all threads in an undisturbed step
MIN_UNDISTURBED_STEPS = 3  # undisturbed steps that are needed to use their wall time


class StepTiming(NamedTuple):
    """The times of one step."""

    wall_s: float
    cpu_s: float  # of all threads
    forward_s: float  # wall time inside the model
    cpu_wait_s: float  # time of all threads without a core
    work: StepWork


class TimedEngine:
    """Runs and times the steps of an engine; the forward pass is timed separately."""

    def __init__(self, engine: TorchEngine) -> None:
        self.engine = engine
        self._runner = _TimedRunner(engine.runner)
        engine.runner = self._runner

    def step(self) -> tuple[StepResult, StepTiming]:
        self._runner.forward_s = 0.0
        cpu_wait, cpu, wall = cpu_use_of(["self"]).waited_s, time.process_time(), time.perf_counter()
        result = self.engine.step()
        durations = time.perf_counter() - wall, time.process_time() - cpu
        plan = self._runner.plan
        work = work_of(plan.decodes, plan.prefills) if plan else StepWork(0, 0, 0, 0)
        return result, StepTiming(*durations, self._runner.forward_s, cpu_use_of(["self"]).waited_s - cpu_wait, work)

    def run_to_end(self) -> None:
        """Run steps until no sequence is left, cancelled ones included."""
        while self.engine.has_work:
            self.engine.step()


class _TimedRunner:
    """A `Runner` that times the forward pass of another."""

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
    """Return the steps whose threads hardly waited for a core."""
    return [timing for timing in timings if timing.cpu_wait_s <= MAX_CPU_WAIT_SHARE * timing.wall_s]


def effective_cores(timings: Sequence[StepTiming]) -> float:
    """Return the cores that the engine uses: the median of undisturbed steps, or the best step if there are none."""
    shares = [timing.cpu_s / timing.wall_s for timing in undisturbed_steps(timings)]
    return median(shares) if shares else max(timing.cpu_s / timing.wall_s for timing in timings)


def typical_duration_s(timings: Sequence[StepTiming], cores: float, min_steps: int = MIN_UNDISTURBED_STEPS) -> float:
    """Return the duration in s on an idle machine: by wall time if enough steps were undisturbed, else by CPU time."""
    undisturbed = undisturbed_steps(timings)
    if len(undisturbed) >= min_steps:
        return median(timing.wall_s for timing in undisturbed)
    return median(min(timing.cpu_s / cores, timing.wall_s) for timing in timings)


def mean_work(timings: Sequence[StepTiming]) -> StepWork:
    """Return the mean work: the contexts of decodes grow by one position per step."""
    return StepWork(
        *(round(sum(each) / len(timings)) for each in zip(*(timing.work for timing in timings), strict=True))
    )
