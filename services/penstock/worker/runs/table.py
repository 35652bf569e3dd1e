"""Which runs this worker has, on which edge's stream, and what becomes of each. Knows no clock, pipe or stream.

A run comes by a START under a lease; a START that overtook its lease's announcement is parked for a moment. Every run
ends in exactly one `Ended`, whatever happens to its edge, its lease, its deadline or the engine; what was taken out of
the engine ends when the engine says that it let go.
"""

import math
from dataclasses import dataclass, field

from penstock.chassis.errors import PenstockError
from penstock.worker.engine.errors import StartInvalid
from penstock.worker.engine.interface import SequenceCancelled, SequenceFinished, StepResult
from penstock.worker.quarantine.quarantine import CrashQuarantine, TimerKey
from penstock.worker.runs import errors
from penstock.worker.runs.effects import (
    AddSequence,
    CancelSequence,
    Effect,
    LeasesReleased,
    LeaseStarted,
    RunEnded,
    RunOutcome,
    merge_releases,
    outcome_of,
)
from penstock.worker.runs.errors import LeaseLost
from penstock.worker.runs.leases import LeaseGrant, LeaseTable
from penstock.worker.runs.limits import RunLimits
from penstock.worker.runs.run import LeaseProgress, Run, StopReason
from penstock.worker.runs.timers import Timers
from penstock.worker.runs.token_fanout import RunCounters, fan_out_tokens, record_prefills
from penstock.worker.scheduler_session.progress import ProgressReporter


@dataclass(slots=True, kw_only=True)
class RunTable:
    """Calls say what happened; the returned effects say what is to be done, in order.

    `closed` is why nothing can start now (the engine loads, or died); None when it can.
    """

    leases: LeaseTable
    lease_announce_timeout: float = 1.0  # s that a START waits for its lease to be announced
    max_parked: int = 1_024  # runs; a START beyond them is refused as if its time were over
    not_ready_error: PenstockError | None = field(default_factory=errors.loading)
    is_draining: bool = False
    last_step: int = 0  # the engine's last
    counters: RunCounters = field(default_factory=RunCounters)
    parked: dict[str, Run] = field(default_factory=dict)  # by lease
    running: dict[int, Run] = field(default_factory=dict)  # by seq_id: all that the engine has
    streams: dict[int, dict[int, Run]] = field(default_factory=dict)  # by handle, for each edge stream
    _limits: RunLimits | None = None
    _timers: Timers[TimerKey] = field(default_factory=Timers)
    _last_seq_id: int = 0
    _progress: ProgressReporter = field(default_factory=ProgressReporter)

    quarantine: CrashQuarantine = field(init=False)

    def __post_init__(self) -> None:
        self.quarantine = CrashQuarantine(self.running, self._timers)

    def __repr__(self) -> str:
        return (
            f"<RunBook {len(self.leases.expected)} expected, {len(self.parked)} parked, {len(self.running)} running "
            f"on {len(self.streams)} streams>"
        )

    @property
    def is_idle(self) -> bool:
        """Nothing runs, and nothing may yet come under a lease already granted."""
        return not (self.running or self.parked or self.quarantine.isolation or self.leases.expected)

    @property
    def next_expiry(self) -> float | None:
        return self._timers.next

    def new_seq_id(self) -> int:
        """Never used before, not even in an engine that died."""
        self._last_seq_id += 1
        return self._last_seq_id

    # What an edge does.

    def open_stream(self, stream: int) -> None:
        self.streams[stream] = {}

    def close_stream(self, stream: int, now: float) -> list[Effect]:
        runs = list(self.streams[stream].values())
        effects = [effect for run in runs for effect in self._stop_run(run, StopReason.STREAM_LOST, now)]
        del self.streams[stream]
        return effects

    def start(self, run: Run, now: float) -> list[Effect]:
        handles = self.streams[run.stream]
        if run.handle in handles:
            effects = self._stop_run(handles.pop(run.handle), StopReason.SUPERSEDED, now)
            reused = StartInvalid(f"handle {run.handle} names a run already; both end, as nobody could tell them apart")
            return [*effects, self._make_ended(run, reused, now)]
        handles[run.handle] = run
        return self._claim(run, now)

    def cancel(self, stream: int, handle: int, now: float) -> list[Effect]:
        run = self.streams[stream].get(handle)
        if run is None:
            return []
        self.counters.cancels += run.stop_reason is None
        return self._stop_run(run, StopReason.CANCEL, now)

    def on_cancel_sent(self, seq_id: int, now: float) -> None:
        """Note that the engine has been told to let go: what steps make that end later is wasted."""
        if run := self.running.get(seq_id):
            run.stop_requested_at, run.wasted_tokens = now, 0

    # What a scheduler does.

    def expect(self, lease_id: str, grant: LeaseGrant, worker_id: str, lapses_at: float, now: float) -> list[Effect]:
        if not self.leases.expect(lease_id, grant, worker_id):
            # Its START was refused before this came: the scheduler is to free what it set aside.
            return [LeasesReleased((lease_id,))] if self.leases.is_past(lease_id) else []
        run = self.parked.pop(lease_id, None)
        if run is None:
            self._timers.set(("lease", lease_id), lapses_at)
            return []
        return self._claim(run, now)

    def revoke(self, lease_id: str, now: float) -> list[Effect]:
        """A running lease is given up too: its scheduler counts on the capacity, so START and revoke have crossed."""
        run = self.parked.get(lease_id) or next((r for r in self.running.values() if r.lease_id == lease_id), None)
        if run is not None:
            return self._stop_run(run, StopReason.REVOKED, now)
        if not self.quarantine.has_waiting(lease_id):  # such a run needs none
            self._end_lease(lease_id)
        return []

    # What the engine does.

    def on_engine_ready(self, limits: RunLimits) -> list[Effect]:
        self._limits, self.last_step = limits, 0
        self.quarantine.set_wait_limits()
        return self._advance_quarantine()

    def on_engine_lost(self, error: PenstockError, now: float, *, crashed: bool = False) -> list[Effect]:
        """End all runs: those to be cancelled have what they wanted, the others are refused with `error`.

        Where it `crashed` by itself, the run that was tried is to blame, or those that it had are put on probation.
        """
        self.not_ready_error, self._limits = error, None
        guilty, freed = self.quarantine.on_engine_lost(now, crashed=crashed)
        effects: list[Effect] = []
        for run in (*self.parked.values(), *self.running.values(), *freed):
            why = errors.engine_crashed() if run in guilty else error
            gone = SequenceCancelled(run.seq_id, run.tokens, 0)
            effects += self._end(run, why if run.stop_reason is None else outcome_of(run, gone), now)
        return merge_releases(effects)

    def on_engine_rejected(self, seq_id: int, error: PenstockError, now: float) -> list[Effect]:
        run = self.running.get(seq_id)
        return [*self._end(run, error, now), *self._advance_quarantine()] if run else []

    def on_step(self, result: StepResult, began_at: float, ended_at: float) -> list[Effect]:
        """`now`: when the step ended."""
        self.last_step = result.step
        record_prefills(result, self.running, began_at)
        effects: list[Effect] = [*fan_out_tokens(result, self.running, self.counters, ended_at)]
        outcomes: list[SequenceFinished | SequenceCancelled] = [*result.cancelled, *result.finished]
        for outcome in outcomes:
            run = self.running.get(outcome.seq_id)
            if run and not (isinstance(outcome, SequenceCancelled) and self.quarantine.park_cleared(run)):
                run.released_at = began_at if isinstance(outcome, SequenceCancelled) else ended_at
                effects += self._end(run, outcome_of(run, outcome._replace(output_tokens=run.tokens)), ended_at)
        self.counters.record_step(ended_at)
        if self.not_ready_error:  # one that is on probation runs
            effects += self._advance_quarantine()
        return merge_releases(effects)

    def take_progress(self, now: float) -> list[LeaseProgress]:
        return self._progress.take_due(self.running.values(), now)

    # What time does.

    def expire(self, now: float) -> list[Effect]:
        """End what fell due: announcements that never came, leases that nobody started, deadlines."""
        effects: list[Effect] = []
        for key in self._timers.pop_due(now):
            if isinstance(key, int):
                effects += self._stop_run(self.running[key], StopReason.DEADLINE, now)
            elif key[0] == "lease":
                self._end_lease(key[1])
            else:
                run = self.parked.get(key[1]) or next(
                    r for r in self.quarantine.isolation.waiting if r.lease_id == key[1]
                )
                late = self._stop_run(run, StopReason.DEADLINE, now) if run.deadline <= now else []
                effects += late or self._end(run, self._unannounced_error(run), now)
        return effects

    def drain(self, now: float) -> list[Effect]:
        """Refuse from now on what has no lease yet; leases already granted may still start."""
        self.is_draining = True
        return [effect for run in list(self.parked.values()) for effect in self._end(run, errors.draining(), now)]

    def _claim(self, run: Run, now: float) -> list[Effect]:
        """Take the run's lease and start it, or refuse it, or park it until the lease is announced."""
        try:
            grant = self.leases.claim(run.lease_id, run.ticket_id)
        except LeaseLost as lost:
            return [self._make_ended(run, lost, now)]
        if grant is None:
            return self._park(run, now)
        run.apply_grant(grant)
        self._cancel_timers(run.lease_id)
        self.running[run.seq_id] = run
        try:
            self._check(run, now)
        except PenstockError as error:
            return [LeaseStarted(run.lease_id), *self._end(run, error, now)]
        return [LeaseStarted(run.lease_id), self._add(run)]

    def _add(self, run: Run) -> Effect:
        run.has_reached_engine = True
        self.running[run.seq_id] = run
        if run.deadline < math.inf:
            self._timers.set(run.seq_id, run.deadline)
        return AddSequence(run.spec)

    def _check(self, run: Run, now: float) -> None:
        if self.not_ready_error or self._limits is None:
            raise self.not_ready_error or errors.loading()
        if run.deadline <= now:
            raise errors.deadline_passed()
        if self.quarantine.poison_list.is_confirmed(run, now):
            raise errors.engine_crashed()
        self._limits.check(run.spec)

    def _park(self, run: Run, now: float) -> list[Effect]:
        if run.lease_id in self.parked:
            return [self._make_ended(run, LeaseLost(f"lease {run.lease_id} was started already"), now)]
        if self.not_ready_error or self.is_draining or len(self.parked) >= self.max_parked:
            return self._end(run, self._unannounced_error(run), now)
        self.parked[run.lease_id] = run
        self._timers.set(("parked", run.lease_id), min(now + self.lease_announce_timeout, run.deadline))
        return []

    def _unannounced_error(self, run: Run) -> PenstockError:
        if self.is_draining:
            return errors.draining()
        return self.not_ready_error or errors.lease_unannounced(run.lease_id)

    def _stop_run(self, run: Run, reason: StopReason, now: float) -> list[Effect]:
        """Have the engine let go of a run; one that it does not have yet ends at once."""
        was_asked = run.stop_reason is not None
        if not was_asked:
            run.stop_requested_at = now
        if not was_asked or reason.is_unreported:
            run.stop_reason = reason
        if not run.is_orphan and self.quarantine.is_suspect(run):
            return self._leave_orphan(run, now)
        if run.seq_id not in self.running:
            ended = self._end(run, outcome_of(run, SequenceCancelled(run.seq_id, run.tokens, 0)), now)
            return [*ended, *self._advance_quarantine()]
        return [] if was_asked else [CancelSequence(run.seq_id)]

    def _leave_orphan(self, run: Run, now: float) -> list[Effect]:
        """End a suspect for whoever waited for it, and go on with its trial."""
        ghost, is_tried = run.make_orphan(), run.seq_id in self.running
        ended = self._end(run, outcome_of(run, SequenceCancelled(run.seq_id, run.tokens, 0)), now)
        self.quarantine.replace_with_orphan(ghost, now, is_isolated=is_tried)
        return ended

    def _advance_quarantine(self) -> list[Effect]:
        """Go on with who is on probation; with none left, the worker is open again."""
        if self._limits is None:
            return []
        probation = self.quarantine.isolation
        if run := probation.clear_isolated():
            return [CancelSequence(run.seq_id)]
        if run := probation.start_next():
            return [self._restart(run)]
        effects: list[Effect] = [self._restart(run) for run in probation.finish()]
        if not probation:
            self.not_ready_error = None
        return effects

    def _restart(self, run: Run) -> Effect:
        self._timers.cancel(("held", run.lease_id))
        run.restart_as(self.new_seq_id())
        return self._add(run)

    def _end(self, run: Run, outcome: RunOutcome, now: float) -> list[Effect]:
        """Forget a run and its lease; only the lease of a started run is known to be held by its scheduler."""
        was_held = self.quarantine.isolation.discard(run)
        was_started = (self.running.pop(run.seq_id, None) is not None or was_held) and not run.is_orphan
        self._timers.cancel(run.seq_id)
        self._end_lease(run.lease_id)
        ended = self._make_ended(run, outcome, now)
        if not was_started:
            return [ended]
        return [ended, LeasesReleased((run.lease_id,), (run.progress,) if run.progress.has_tokens else ())]

    def _end_lease(self, lease_id: str) -> None:
        self.parked.pop(lease_id, None)
        self._cancel_timers(lease_id)
        self.leases.end(lease_id)

    def _cancel_timers(self, lease_id: str) -> None:
        for why in ("lease", "parked", "held"):
            self._timers.cancel((why, lease_id))

    def _make_ended(self, run: Run, outcome: RunOutcome, now: float) -> RunEnded:
        self.counters.tokens_wasted_after_cancel += run.wasted_tokens
        if run.stop_requested_at is not None:
            run.steps_after_stop = self.counters.steps_since(run.stop_requested_at)
        handles = self.streams.get(run.stream, {})
        if handles.get(run.handle) is run:
            del handles[run.handle]
        return RunEnded(
            run,
            outcome,
            now,
            self.last_step,
            is_reported=not (run.is_orphan or (run.stop_reason and run.stop_reason.is_unreported)),
        )
