"""Clairvoyant admission: the rejections that are needed if all lengths are known, but not future arrivals. Pure.

For each request that arrives, an engine is copied with the request in it, and runs until every admitted request has a
first token. The request is admitted if all of them meet their deadlines. So no admitted request is late, and no request
is rejected that could have met its deadline at one of the engines that were tried. Frames take no time.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from heapq import nsmallest

from penstock.simulator.mesh.engine import NO_STEP, SimRun
from penstock.simulator.mesh.fast_engine import FastEngine
from penstock.simulator.mesh.request import SimRequest
from penstock.simulator.scenario import WorkerKind

# Engines that are tried for a request, those with the fewest prompts first. With all of them, the tokens that eight
# workers reject differ by 2 %, in either direction.
MAX_TRIED_ENGINES = 2


@dataclass(slots=True)
class EngineTimeline:
    """An engine that runs through virtual time, and the first tokens that are due."""

    kind: WorkerKind
    engine: FastEngine
    now: float = 0.0  # s; end of the last step
    # Runs without a first token, with the deadline of each.
    ttft_deadlines: dict[int, tuple[SimRun, float]] = field(default_factory=dict)
    waiting: deque[SimRun] = field(default_factory=deque)  # runs for which the engine has no KV blocks yet

    def copy(self) -> "EngineTimeline":
        return deepcopy(self, {id(self.kind): self.kind})

    @property
    def pending_prompt_tokens(self) -> int:
        return sum([run.prompt_tokens - run.prefilled_tokens for run, _ in self.ttft_deadlines.values()])

    def run_until(self, at: float) -> None:
        """Run the steps that start before `at`."""
        while self.now < at and self.engine.has_work:
            self.step()
        self.now = max(self.now, at)

    def add(self, run: SimRun, deadline: float) -> None:
        self.waiting.append(run)
        self.ttft_deadlines[run.run_id] = run, deadline
        self._start_waiting()

    def step(self) -> list[float]:
        """Run one step; return the slack in s of each first token in it."""
        self.now += self.engine.step().duration
        self._start_waiting()
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

    def _start_waiting(self) -> None:
        while self.waiting and self.engine.fits(self.waiting[0]):
            self.engine.add(self.waiting.popleft())


def clairvoyant_rejections(
    requests: Iterable[SimRequest], kind: WorkerKind, ttft_target: float, workers: int = 1
) -> Sequence[SimRequest]:
    """Return the requests that it rejects at `workers` workers; `requests` are in order of arrival."""
    timelines, rejected = [EngineTimeline(kind, FastEngine(kind)) for _ in range(workers)], []
    for number, request in enumerate(requests):
        for each in timelines:
            each.run_until(request.transcript.started_at)
        if not _admit(timelines, number, request, ttft_target):
            rejected.append(request)
    return rejected


def _admit(timelines: Sequence[EngineTimeline], number: int, request: SimRequest, ttft_target: float) -> bool:
    """Place a request at the first engine that meets all deadlines with it; return whether there is one."""
    due = request.transcript.started_at + ttft_target
    tried = nsmallest(
        MAX_TRIED_ENGINES, timelines, key=lambda each: (len(each.ttft_deadlines), each.pending_prompt_tokens)
    )
    for timeline in tried:
        candidate = timeline.copy()
        candidate.add(_run_of(number, request), due)
        if candidate.meets_all_deadlines():
            timeline.add(_run_of(number, request), due)
            return True
    return False


def _run_of(number: int, request: SimRequest) -> SimRun:
    return SimRun(number, request.tenant.name, request.prompt_tokens, request.output_tokens, request.max_output_tokens)
