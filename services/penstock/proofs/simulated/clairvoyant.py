"""Clairvoyant admission: the rejections that are needed if all lengths are known, but not future arrivals. Pure.

For each request that arrives, the engine is copied with the request in it, and runs until every admitted request has a
first token. The request is admitted if all of them meet their deadlines. So no admitted request is late, and no request
is rejected that could have met its deadline without making another one late. Frames take no time.
"""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from penstock.simulator.mesh.engine import NO_STEP, SimRun
from penstock.simulator.mesh.fast_engine import FastEngine
from penstock.simulator.mesh.request import SimRequest
from penstock.simulator.scenario import WorkerKind


@dataclass(slots=True)
class EngineTimeline:
    """An engine that runs through virtual time, and the first tokens that are due."""

    kind: WorkerKind
    engine: FastEngine
    now: float = 0.0  # s; end of the last step
    # Runs without a first token, with the deadline of each.
    ttft_deadlines: dict[int, tuple[SimRun, float]] = field(default_factory=dict)

    def copy(self) -> "EngineTimeline":
        return deepcopy(self, {id(self.kind): self.kind})

    def run_until(self, at: float) -> None:
        """Run the steps that start before `at`."""
        while self.now < at and self.engine.has_work:
            self.step()
        self.now = max(self.now, at)

    def add(self, run: SimRun, deadline: float) -> None:
        self.engine.add(run)
        self.ttft_deadlines[run.run_id] = run, deadline

    def step(self) -> list[float]:
        """Run one step; return the slack in s of each first token in it."""
        self.now += self.engine.step().duration
        first = [run_id for run_id, (run, _) in self.ttft_deadlines.items() if run.first_token_step != NO_STEP]
        return [self.ttft_deadlines.pop(run_id)[1] - self.now for run_id in first]

    def meets_all_deadlines(self) -> bool:
        """Whether every run meets its deadline if no other arrives; it changes this timeline, so call it on a copy."""
        while self.ttft_deadlines:
            if (
                min(self.step(), default=0.0) < 0
                or min((due for _, due in self.ttft_deadlines.values()), default=self.now) < self.now
            ):
                return False
        return True


def clairvoyant_rejections(
    requests: Iterable[SimRequest], kind: WorkerKind, ttft_target: float
) -> Sequence[SimRequest]:
    """Return the requests that it rejects at a single worker; `requests` are in order of arrival."""
    timeline, rejected = EngineTimeline(kind, FastEngine(kind)), []
    for number, request in enumerate(requests):
        at = request.transcript.started_at
        timeline.run_until(at)
        candidate = timeline.copy()
        candidate.add(_run_of(number, request), at + ttft_target)
        if candidate.meets_all_deadlines():
            timeline.add(_run_of(number, request), at + ttft_target)
        else:
            rejected.append(request)
    return rejected


def _run_of(number: int, request: SimRequest) -> SimRun:
    return SimRun(number, request.tenant.name, request.prompt_tokens, request.output_tokens, request.max_output_tokens)
