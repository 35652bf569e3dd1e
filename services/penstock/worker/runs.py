"""Which runs this worker has, on which edge's stream, and what becomes of each. Knows no clock, pipe or stream.

A run comes by a START under a lease; a START that overtook its lease's announcement is parked for a moment. Every run
ends in exactly one `Ended`, whatever happens to its edge, its lease, its deadline or the engine; what was taken out of
the engine ends when the engine says that it let go.
"""

import math
from dataclasses import dataclass, field

from penstock.chassis.errors import PenstockError
from penstock.worker import refusals
from penstock.worker.effects import (
    AddSequence,
    CancelSequence,
    Effect,
    Ended,
    LeasesReleased,
    LeaseStarted,
    Outcome,
)
from penstock.worker.endings import outcome_of, told_at_once
from penstock.worker.engine.errors import StartInvalid
from penstock.worker.engine.interface import Cancelled, Finished, StepResult
from penstock.worker.leases import Grant, LeaseBook
from penstock.worker.limits import Limits
from penstock.worker.news import News
from penstock.worker.refusals import LeaseLost
from penstock.worker.run import Ending, Run, Served
from penstock.worker.spread import RunCounts, note_prompts, spread
from penstock.worker.timers import Timers
from penstock.worker.trials import DueKey, Trials


@dataclass(slots=True, kw_only=True)
class RunBook:
    """Calls say what happened; the returned effects say what is to be done, in order.

    `closed` is why nothing can start now (the engine loads, or died); None when it can.
    """

    leases: LeaseBook
    park_for: float = 1.0  # s that a START waits for its lease to be announced
    max_parked: int = 1_024  # runs; a START beyond them is refused as if its time were over
    closed: PenstockError | None = field(default_factory=refusals.loading)
    is_draining: bool = False
    step: int = 0  # the engine's last
    counts: RunCounts = field(default_factory=RunCounts)
    parked: dict[str, Run] = field(default_factory=dict)  # by lease
    running: dict[int, Run] = field(default_factory=dict)  # by seq_id: all that the engine has
    streams: dict[int, dict[int, Run]] = field(default_factory=dict)  # by handle, for each edge stream
    _limits: Limits | None = None
    _due: Timers[DueKey] = field(default_factory=Timers)
    _last_seq_id: int = 0
    _news: News = field(default_factory=News)

    trials: Trials = field(init=False)

    def __post_init__(self) -> None:
        self.trials = Trials(self.running, self._due)

    def __repr__(self) -> str:
        return (
            f"<RunBook {len(self.leases.expected)} expected, {len(self.parked)} parked, {len(self.running)} running "
            f"on {len(self.streams)} streams>"
        )

    @property
    def is_idle(self) -> bool:
        """Nothing runs, and nothing may yet come under a lease already granted."""
        return not (self.running or self.parked or self.trials.probation or self.leases.expected)

    @property
    def next_expiry(self) -> float | None:
        return self._due.next

    def new_seq_id(self) -> int:
        """Never used before, not even in an engine that died."""
        self._last_seq_id += 1
        return self._last_seq_id

    # What an edge does.

    def open_stream(self, stream: int) -> None:
        self.streams[stream] = {}

    def close_stream(self, stream: int, now: float) -> list[Effect]:
        runs = list(self.streams[stream].values())
        effects = [effect for run in runs for effect in self._take_out(run, Ending.STREAM_LOST, now)]
        del self.streams[stream]
        return effects

    def start(self, run: Run, now: float) -> list[Effect]:
        handles = self.streams[run.stream]
        if run.handle in handles:
            effects = self._take_out(handles.pop(run.handle), Ending.SUPERSEDED, now)
            reused = StartInvalid(f"handle {run.handle} names a run already; both end, as nobody could tell them apart")
            return [*effects, self._ended(run, reused, now)]
        handles[run.handle] = run
        return self._claim(run, now)

    def cancel(self, stream: int, handle: int, now: float) -> list[Effect]:
        run = self.streams[stream].get(handle)
        if run is None:
            return []
        self.counts.cancels += run.ending is None
        return self._take_out(run, Ending.CANCEL, now)

    def told(self, seq_id: int, now: float) -> None:
        """Note that the engine has been told to let go: what steps make that end later is wasted."""
        if run := self.running.get(seq_id):
            run.asked_at, run.wasted = now, 0

    # What a scheduler does.

    def expect(self, lease_id: str, grant: Grant, worker_id: str, lapses_at: float, now: float) -> list[Effect]:
        if not self.leases.expect(lease_id, grant, worker_id):
            # Its START was refused before this came: the scheduler is to free what it set aside.
            return [LeasesReleased((lease_id,))] if self.leases.is_past(lease_id) else []
        run = self.parked.pop(lease_id, None)
        if run is None:
            self._due.set(("lease", lease_id), lapses_at)
            return []
        return self._claim(run, now)

    def revoke(self, lease_id: str, now: float) -> list[Effect]:
        """A running lease is given up too: its scheduler counts on the capacity, so START and revoke have crossed."""
        run = self.parked.get(lease_id) or next((r for r in self.running.values() if r.lease_id == lease_id), None)
        if run is not None:
            return self._take_out(run, Ending.REVOKED, now)
        if not self.trials.holds(lease_id):  # such a run needs none
            self._end_lease(lease_id)
        return []

    # What the engine does.

    def engine_ready(self, limits: Limits) -> list[Effect]:
        self._limits, self.step = limits, 0
        self.trials.time_waits()
        return self._try_next()

    def engine_lost(self, error: PenstockError, now: float, *, crashed: bool = False) -> list[Effect]:
        """End all runs: those to be cancelled have what they wanted, the others are refused with `error`.

        Where it `crashed` by itself, the run that was tried is to blame, or those that it had are put on probation.
        """
        self.closed, self._limits = error, None
        guilty, freed = self.trials.lose_engine(now, crashed=crashed)
        effects: list[Effect] = []
        for run in (*self.parked.values(), *self.running.values(), *freed):
            why = refusals.engine_crashed() if run in guilty else error
            gone = Cancelled(run.seq_id, run.tokens, 0)
            effects += self._end(run, why if run.ending is None else outcome_of(run, gone), now)
        return told_at_once(effects)

    def engine_refused(self, seq_id: int, error: PenstockError, now: float) -> list[Effect]:
        run = self.running.get(seq_id)
        return [*self._end(run, error, now), *self._try_next()] if run else []

    def stepped(self, result: StepResult, began_at: float, now: float) -> list[Effect]:
        """`now`: when the step ended."""
        self.step = result.step
        note_prompts(result, self.running, began_at)
        effects: list[Effect] = [*spread(result, self.running, self.counts, now)]
        outcomes: list[Finished | Cancelled] = [*result.cancelled, *result.finished]
        for outcome in outcomes:
            run = self.running.get(outcome.seq_id)
            if run and not (isinstance(outcome, Cancelled) and self.trials.set_aside(run)):
                run.let_go_at = began_at if isinstance(outcome, Cancelled) else now
                effects += self._end(run, outcome_of(run, outcome._replace(output_tokens=run.tokens)), now)
        self.counts.note_step(now)
        if self.closed:  # one that is on probation runs
            effects += self._try_next()
        return told_at_once(effects)

    def progress(self, now: float) -> list[Served]:
        return self._news.due(self.running.values(), now)

    # What time does.

    def expire(self, now: float) -> list[Effect]:
        """End what fell due: announcements that never came, leases that nobody started, deadlines."""
        effects: list[Effect] = []
        for key in self._due.due(now):
            if isinstance(key, int):
                effects += self._take_out(self.running[key], Ending.DEADLINE, now)
            elif key[0] == "lease":
                self._end_lease(key[1])
            else:
                run = self.parked.get(key[1]) or next(r for r in self.trials.probation.waiting if r.lease_id == key[1])
                late = self._take_out(run, Ending.DEADLINE, now) if run.deadline <= now else []
                effects += late or self._end(run, self._unannounced(run), now)
        return effects

    def drain(self, now: float) -> list[Effect]:
        """Refuse from now on what has no lease yet; leases already granted may still start."""
        self.is_draining = True
        return [effect for run in list(self.parked.values()) for effect in self._end(run, refusals.draining(), now)]

    def _claim(self, run: Run, now: float) -> list[Effect]:
        """Take the run's lease and start it, or refuse it, or park it until the lease is announced."""
        try:
            grant = self.leases.take(run.lease_id, run.ticket_id)
        except LeaseLost as lost:
            return [self._ended(run, lost, now)]
        if grant is None:
            return self._park(run, now)
        run.hold(grant)
        self._forget_timers(run.lease_id)
        self.running[run.seq_id] = run
        try:
            self._check(run, now)
        except PenstockError as error:
            return [LeaseStarted(run.lease_id), *self._end(run, error, now)]
        return [LeaseStarted(run.lease_id), self._add(run)]

    def _add(self, run: Run) -> Effect:
        run.was_given = True
        self.running[run.seq_id] = run
        if run.deadline < math.inf:
            self._due.set(run.seq_id, run.deadline)
        return AddSequence(run.spec)

    def _check(self, run: Run, now: float) -> None:
        if self.closed or self._limits is None:
            raise self.closed or refusals.loading()
        if run.deadline <= now:
            raise refusals.too_late()
        if self.trials.blames.is_guilty(run, now):
            raise refusals.engine_crashed()
        self._limits.check(run.spec)

    def _park(self, run: Run, now: float) -> list[Effect]:
        if run.lease_id in self.parked:
            return [self._ended(run, LeaseLost(f"lease {run.lease_id} was started already"), now)]
        if self.closed or self.is_draining or len(self.parked) >= self.max_parked:
            return self._end(run, self._unannounced(run), now)
        self.parked[run.lease_id] = run
        self._due.set(("parked", run.lease_id), min(now + self.park_for, run.deadline))
        return []

    def _unannounced(self, run: Run) -> PenstockError:
        if self.is_draining:
            return refusals.draining()
        return self.closed or refusals.lease_unannounced(run.lease_id)

    def _take_out(self, run: Run, ending: Ending, now: float) -> list[Effect]:
        """Have the engine let go of a run; one that it does not have yet ends at once."""
        was_asked = run.ending is not None
        if not was_asked:
            run.asked_at = now
        if not was_asked or ending.is_silent:
            run.ending = ending
        if not run.is_ghost and self.trials.is_suspect(run):
            return self._leave_ghost(run, now)
        if run.seq_id not in self.running:
            ended = self._end(run, outcome_of(run, Cancelled(run.seq_id, run.tokens, 0)), now)
            return [*ended, *self._try_next()]
        return [] if was_asked else [CancelSequence(run.seq_id)]

    def _leave_ghost(self, run: Run, now: float) -> list[Effect]:
        """End a suspect for whoever waited for it, and go on with its trial."""
        ghost, is_tried = run.ghost(), run.seq_id in self.running
        ended = self._end(run, outcome_of(run, Cancelled(run.seq_id, run.tokens, 0)), now)
        self.trials.haunt(ghost, now, is_tried=is_tried)
        return ended

    def _try_next(self) -> list[Effect]:
        """Go on with who is on probation; with none left, the worker is open again."""
        if self._limits is None:
            return []
        probation = self.trials.probation
        if run := probation.acquit():
            return [CancelSequence(run.seq_id)]
        if run := probation.next():
            return [self._add_again(run)]
        effects: list[Effect] = [self._add_again(run) for run in probation.close()]
        if not probation:
            self.closed = None
        return effects

    def _add_again(self, run: Run) -> Effect:
        self._due.drop(("held", run.lease_id))
        run.start_over(self.new_seq_id())
        return self._add(run)

    def _end(self, run: Run, outcome: Outcome, now: float) -> list[Effect]:
        """Forget a run and its lease; only the lease of a started run is known to be held by its scheduler."""
        was_held = self.trials.probation.drop(run)
        was_started = (self.running.pop(run.seq_id, None) is not None or was_held) and not run.is_ghost
        self._due.drop(run.seq_id)
        self._end_lease(run.lease_id)
        ended = self._ended(run, outcome, now)
        if not was_started:
            return [ended]
        return [ended, LeasesReleased((run.lease_id,), (run.served,) if run.served.is_any else ())]

    def _end_lease(self, lease_id: str) -> None:
        self.parked.pop(lease_id, None)
        self._forget_timers(lease_id)
        self.leases.end(lease_id)

    def _forget_timers(self, lease_id: str) -> None:
        for why in ("lease", "parked", "held"):
            self._due.drop((why, lease_id))

    def _ended(self, run: Run, outcome: Outcome, now: float) -> Ended:
        self.counts.tokens_wasted_after_cancel += run.wasted
        if run.asked_at is not None:
            run.steps_since_asked = self.counts.steps_since(run.asked_at)
        handles = self.streams.get(run.stream, {})
        if handles.get(run.handle) is run:
            del handles[run.handle]
        return Ended(run, outcome, now, self.step, answers=not (run.is_ghost or (run.ending and run.ending.is_silent)))
