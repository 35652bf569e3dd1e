"""A clairvoyant at the door: how many have to be refused by whoever knows all but who is yet to come. Pure.

For each that arrives, the engine is copied with it let in, and run until everybody let in so far has a first token: it
may come in if all of them are in time. So nobody is ever late, nobody is refused who could have been in time without
making another late, and no prediction is needed: answers are as long as they turn out to be, and no frame takes time.
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
    """An engine on its way."""

    kind: WorkerKind
    engine: FastEngine
    now: float = 0.0  # s; end of the last step
    ttft_deadlines: dict[int, tuple[SimRun, float]] = field(
        default_factory=dict
    )  # without a first token: by when each is to have it

    def copy(self) -> "EngineTimeline":
        return deepcopy(self, {id(self.kind): self.kind})

    def run_until(self, at: float) -> None:
        """Do the steps that begin before `at`."""
        while self.now < at and self.engine.has_work:
            self.step()
        self.now = max(self.now, at)

    def add(self, run: SimRun, deadline: float) -> None:
        self.engine.add(run)
        self.ttft_deadlines[run.run_id] = run, deadline

    def step(self) -> list[float]:
        """Return by how much each first token of this step comes early, in s."""
        self.now += self.engine.step().duration
        first = [name for name, (run, _) in self.ttft_deadlines.items() if run.first_token_step != NO_STEP]
        return [self.ttft_deadlines.pop(name)[1] - self.now for name in first]

    def meets_all_deadlines(self) -> bool:
        """Tell whether everybody is in time if nobody else comes; spoils the course."""
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
    """Return whom it refuses at a single worker; requests in the order in which they come."""
    course, found = EngineTimeline(kind, FastEngine(kind)), []
    for number, request in enumerate(requests):
        at = request.transcript.started_at
        course.run_until(at)
        asked = course.copy()
        asked.add(_run_of(number, request), at + ttft_target)
        if asked.meets_all_deadlines():
            course.add(_run_of(number, request), at + ttft_target)
        else:
            found.append(request)
    return found


def _run_of(number: int, request: SimRequest) -> SimRun:
    return SimRun(number, request.tenant.name, request.prompt_tokens, request.output_tokens, request.max_output_tokens)
