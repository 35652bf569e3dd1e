"""The run table: the worker's runs and the transitions of each. Knows no clock, pipe or stream.

A run begins with a START under a lease. A START that arrives before its lease is announced is parked for
`lease_announce_timeout`. Every run ends in exactly one `RunEnded`, also when its edge, its lease or the engine is lost
or its deadline passes. A run that is cancelled in the engine ends when the engine reports that it released the run.
"""

import math
from dataclasses import InitVar, dataclass, field

from penstock.chassis.errors import InvalidArgument, PenstockError
from penstock.worker.engine.batching.errors import StartInvalid
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
from penstock.worker.runs.parking import ParkedStarts
from penstock.worker.runs.run import MAX_PREEMPTIONS, Run, StopReason
from penstock.worker.runs.timers import Timers
from penstock.worker.runs.token_fanout import EdgeStreams, RunCounters, fan_out_tokens, record_prefills


@dataclass(slots=True, kw_only=True)
class RunTable:
    """Calls report events; each returns the effects to perform, in order."""

    leases: LeaseTable
    lease_announce_timeout: InitVar[float] = 1.0  # s that a START waits for the announcement of its lease
    max_parked: InitVar[int] = 1_024  # runs; a START beyond them fails as if its timeout had passed
    not_ready_error: PenstockError | None = field(default_factory=errors.loading)  # None if runs can start
    is_draining: bool = False
    last_step: int = 0  # number of the engine's last step
    counters: RunCounters = field(default_factory=RunCounters)
    running: dict[int, Run] = field(default_factory=dict)  # by seq_id: all runs in the engine
    streams: EdgeStreams = field(default_factory=EdgeStreams)
    parked: ParkedStarts = field(init=False)
    quarantine: CrashQuarantine = field(init=False)
    _limits: RunLimits | None = None
    _timers: Timers[TimerKey] = field(default_factory=Timers)
    _last_seq_id: int = 0

    def __post_init__(self, lease_announce_timeout: float, max_parked: int) -> None:
        self.parked = ParkedStarts(timers=self._timers, announce_timeout=lease_announce_timeout, max_runs=max_parked)
        self.quarantine = CrashQuarantine(self.running, self._timers)

    def __repr__(self) -> str:
        return (
            f"<RunTable {len(self.leases.expected)} expected, {len(self.parked)} parked, {len(self.running)} running "
            f"on {len(self.streams)} streams>"
        )

    @property
    def is_idle(self) -> bool:
        """Whether no run exists and none may start under a lease that has been granted."""
        return not (self.running or self.parked or self.quarantine.isolation or self.leases.expected)

    @property
    def next_expiry(self) -> float | None:
        return self._timers.next

    def new_seq_id(self) -> int:
        """Return a number that no sequence has had, in this engine or an earlier one."""
        self._last_seq_id += 1
        return self._last_seq_id

    # Events of an edge.

    def close_stream(self, stream: int, now: float) -> list[Effect]:
        runs = self.streams.runs_of(stream)
        effects = [effect for run in runs for effect in self._stop_run(run, StopReason.STREAM_LOST, now)]
        self.streams.close(stream)
        return effects

    def start(self, run: Run, now: float) -> list[Effect]:
        if previous := self.streams.find(run.stream, run.handle):
            self.streams.discard(previous)
            effects = self._stop_run(previous, StopReason.SUPERSEDED, now)
            error = StartInvalid(f"handle {run.handle} already names a run; both runs end, as their frames are alike")
            return [*effects, self._make_ended(run, error, now)]
        self.streams.add(run)
        return self._claim(run, now)

    def cancel(self, stream: int, handle: int, now: float) -> list[Effect]:
        run = self.streams.find(stream, handle)
        if run is None:
            return []
        self.counters.cancels += run.stop_reason is None
        return self._stop_run(run, StopReason.CANCEL, now)

    def on_cancel_sent(self, seq_id: int, now: float) -> None:
        """Record that the cancel was sent to the engine: tokens of steps that end later are wasted."""
        if run := self.running.get(seq_id):
            run.stop_requested_at, run.wasted_tokens = now, 0

    # Events of a scheduler.

    def expect(self, lease_id: str, grant: LeaseGrant, worker_id: str, lapses_at: float, now: float) -> list[Effect]:
        if not self.leases.expect(lease_id, grant, worker_id):
            # The START of a past lease failed before this announcement: the scheduler must free its reservation.
            return [LeasesReleased((lease_id,))] if self.leases.is_past(lease_id) else []
        run = self.parked.pop(lease_id)
        if run is None:
            self._timers.set(("lease", lease_id), lapses_at)
            return []
        return self._claim(run, now)

    def revoke(self, lease_id: str, now: float) -> list[Effect]:
        """End a lease, and its run if START and revoke crossed: the scheduler counts on the capacity."""
        run = self.parked.find(lease_id) or next((r for r in self.running.values() if r.lease_id == lease_id), None)
        if run is not None:
            return self._stop_run(run, StopReason.REVOKED, now)
        if not self.quarantine.find_waiting(lease_id):  # a run in quarantine needs no lease
            self._end_lease(lease_id)
        return []

    # Events of the engine.

    def on_engine_ready(self, limits: RunLimits, now: float) -> list[Effect]:
        """Restart the runs in quarantine, unless the files of the model were replaced since: then these runs end."""
        self._limits, self.last_step = limits, 0
        self.quarantine.set_wait_limits()
        effects: list[Effect] = []
        for run in self.quarantine.isolation.waiting:
            if run.model != limits.model:
                effects += self._end(run, errors.model_mismatch(run.model, limits.model), now)
        return [*merge_releases(effects), *self._advance_quarantine()]

    def on_engine_lost(self, error: PenstockError, now: float, *, crashed: bool = False) -> list[Effect]:
        """End all runs: a run that was being stopped ends as it would have, the others fail with `error`.

        If the engine crashed by itself, the isolated run is confirmed as the cause, or all runs that the engine had
        become suspects and stay in quarantine.
        """
        self.not_ready_error, self._limits = error, None
        found = self.quarantine.on_engine_lost(now, crashed=crashed)
        errors_of: dict[int, PenstockError] = {
            run.seq_id: errors.engine_crashed() for run in (found.culprit, *found.twins) if run
        }
        errors_of |= {run.seq_id: errors.tenant_on_probation() for run in found.untested}
        effects: list[Effect] = []
        for run in (*self.parked, *self.running.values(), *found.twins, *found.untested, *found.cleared):
            run_error = errors_of.get(run.seq_id, error)
            cancelled = SequenceCancelled(run.seq_id, run.tokens, 0)
            effects += self._end(run, run_error if run.stop_reason is None else outcome_of(run, cancelled), now)
        return merge_releases(effects)

    def on_engine_rejected(self, seq_id: int, error: PenstockError, now: float) -> list[Effect]:
        run = self.running.get(seq_id)
        return [*self._end(run, error, now), *self._advance_quarantine()] if run else []

    def on_step(self, result: StepResult, began_at: float, ended_at: float) -> list[Effect]:
        self.last_step = result.step
        record_prefills(result, self.running, self.counters, began_at)
        for seq_id in result.preempted:
            if run := self.running.get(seq_id):
                run.preempted_at = (*run.preempted_at[-MAX_PREEMPTIONS + 1 :], began_at)
        effects: list[Effect] = [*fan_out_tokens(result, self.running, self.counters, ended_at)]
        outcomes: list[SequenceFinished | SequenceCancelled] = [*result.cancelled, *result.finished]
        for outcome in outcomes:
            run = self.running.get(outcome.seq_id)
            if run and not (isinstance(outcome, SequenceCancelled) and self.quarantine.park_cleared(run)):
                run.released_at = began_at if isinstance(outcome, SequenceCancelled) else ended_at
                effects += self._end(run, outcome_of(run, outcome._replace(output_tokens=run.tokens)), ended_at)
        for rejected in result.rejected:
            if run := self.running.get(rejected.seq_id):
                effects += self._end(run, InvalidArgument(rejected.message, reason=rejected.reason), ended_at)
        self.counters.record_step(result, ended_at)
        if self.not_ready_error:  # steps run while the worker is not ready only if a suspect is isolated
            effects += self._advance_quarantine()
        return merge_releases(effects)

    # Events of the clock.

    def expire(self, now: float) -> list[Effect]:
        """End all that is due: parked starts, leases that were never started, and runs past their deadline."""
        effects: list[Effect] = []
        for key in self._timers.pop_due(now):
            if isinstance(key, int):
                effects += self._stop_run(self.running[key], StopReason.DEADLINE, now)
            elif key[0] == "lease":
                self._end_lease(key[1])
            else:
                run = self.parked.find(key[1]) or self.quarantine.find_waiting(key[1])
                assert run, "an ended run has no timer"
                expired = self._stop_run(run, StopReason.DEADLINE, now) if run.deadline <= now else []
                effects += expired or self._end(run, self._unannounced_error(run), now)
        return effects

    def drain(self, now: float) -> list[Effect]:
        """Reject starts without a lease from now on; leases that have been granted may still start."""
        self.is_draining = True
        return [effect for run in self.parked for effect in self._end(run, errors.draining(), now)]

    def _claim(self, run: Run, now: float) -> list[Effect]:
        """Claim the run's lease and start the run, fail it, or park it until the lease is announced."""
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
        if run.model != self._limits.model:
            raise errors.model_mismatch(run.model, self._limits.model)
        if self.quarantine.poison_list.is_confirmed(run, now):
            raise errors.engine_crashed()
        self._limits.check(run.spec)

    def _park(self, run: Run, now: float) -> list[Effect]:
        if self.parked.find(run.lease_id):
            return [self._make_ended(run, LeaseLost(f"lease {run.lease_id} was started already"), now)]
        if self.not_ready_error or self.is_draining or self.parked.is_full:
            return self._end(run, self._unannounced_error(run), now)
        self.parked.add(run, now)
        return []

    def _unannounced_error(self, run: Run) -> PenstockError:
        if self.is_draining:
            return errors.draining()
        return self.not_ready_error or errors.lease_unannounced(run.lease_id)

    def _stop_run(self, run: Run, reason: StopReason, now: float) -> list[Effect]:
        """Cancel a run in the engine; a run that the engine does not have ends at once."""
        was_stopping = run.stop_reason is not None
        if not was_stopping:
            run.stop_requested_at, run.last_wanted_at = now, run.last_token_at
        if not was_stopping or reason.is_unreported:
            run.stop_reason = reason
        if not run.is_orphan and self.quarantine.is_suspect(run):
            return self._leave_orphan(run, now)
        if run.seq_id not in self.running:
            ended = self._end(run, outcome_of(run, SequenceCancelled(run.seq_id, run.tokens, 0)), now)
            return [*ended, *self._advance_quarantine()]
        return [] if was_stopping else [CancelSequence(run.seq_id)]

    def _leave_orphan(self, run: Run, now: float) -> list[Effect]:
        """End a suspect for its edge; an orphan takes its place in quarantine."""
        orphan, is_isolated = run.make_orphan(), run.seq_id in self.running
        ended = self._end(run, outcome_of(run, SequenceCancelled(run.seq_id, run.tokens, 0)), now)
        self.quarantine.replace_with_orphan(orphan, now, is_isolated=is_isolated)
        return ended

    def _advance_quarantine(self) -> list[Effect]:
        """Move the quarantine on; the worker is ready again once no suspect is left."""
        if self._limits is None:
            return []
        cleared, restarted = self.quarantine.advance()
        if not self.quarantine.isolation:
            self.not_ready_error = None
        return [CancelSequence(cleared.seq_id)] if cleared else [self._restart(run) for run in restarted]

    def _restart(self, run: Run) -> Effect:
        self._timers.cancel(("quarantined", run.lease_id))
        run.restart_as(self.new_seq_id())
        return self._add(run)

    def _end(self, run: Run, outcome: RunOutcome, now: float) -> list[Effect]:
        """Remove a run and its lease. The lease is released if the run had started: then the scheduler holds it."""
        was_quarantined = self.quarantine.isolation.discard(run)
        was_started = (self.running.pop(run.seq_id, None) is not None or was_quarantined) and not run.is_orphan
        self._timers.cancel(run.seq_id)
        self._end_lease(run.lease_id)
        ended = self._make_ended(run, outcome, now)
        if not was_started:
            return [ended]
        return [ended, LeasesReleased((run.lease_id,), (run.progress,) if run.progress.has_tokens else ())]

    def _end_lease(self, lease_id: str) -> None:
        self.parked.pop(lease_id)
        self._cancel_timers(lease_id)
        self.leases.end(lease_id)

    def _cancel_timers(self, lease_id: str) -> None:
        for kind in ("lease", "parked", "quarantined"):
            self._timers.cancel((kind, lease_id))

    def _make_ended(self, run: Run, outcome: RunOutcome, now: float) -> RunEnded:
        self.counters.tokens_wasted_after_cancel += run.wasted_tokens
        if run.stop_requested_at is not None:
            run.steps_after_stop = self.counters.steps_since(run.stop_requested_at)
        self.streams.discard(run)
        is_reported = not (run.is_orphan or (run.stop_reason and run.stop_reason.is_unreported))
        return RunEnded(run, outcome, now, self.last_step, is_reported=is_reported)
