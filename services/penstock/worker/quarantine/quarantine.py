"""Quarantine of runs of which one may have crashed the engine. Knows no clock and no engine."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.worker.quarantine.poison_list import PoisonList, PoisonReport
from penstock.worker.runs.run import Run
from penstock.worker.runs.timers import Timers


@dataclass(slots=True)
class SuspectIsolation:
    """Finds the run that crashed an engine, without the loss of a second worker's engine.

    A run that crashes an engine by itself would crash the next one, too, on any worker. Therefore:

    1. Every run in an engine that crashed is a suspect and stays on this worker, as the last step is unknown.
    2. The next engine runs one suspect at a time, and no other run; suspects with the fewest tokens go first.
    3. A suspect that makes a token beyond the point of the crash is cleared. It waits outside the engine until all
       suspects are cleared or confirmed, because beside another suspect both would become suspects again.
    4. A suspect that crashes the engine before that point is confirmed, as it was alone. Runs cleared by then may
       continue on other workers. The remaining suspects stay in quarantine, because several runs may crash engines.
    5. A suspect whose edge, lease or deadline is gone continues as an orphan, because its request may be sent again.
    6. An engine that is killed from outside proves nothing; its isolated run is isolated again.
    7. The worker stays attached to a scheduler without capacity, and broadcasts its suspects to the others, so that no
       scheduler places a suspect elsewhere; queues give them the time to learn of it.

    So a run that crashes every engine at some token does so twice, on one worker, and no other run is confirmed.
    Two cases are not covered. If the same request is sent twice, its copies may run on two workers when the first
    engine crashes; preventing that would delay all equal requests. If a worker has only one scheduler, which becomes
    unreachable at that moment, a request whose edge is lost, too, may be placed elsewhere until that is detected.
    """

    pending: list[Run] = field(default_factory=list)  # suspects that wait for isolation
    isolated: Run | None = None  # the run that the engine runs alone
    cleared: list[Run] = field(default_factory=list)  # wait for the end of the quarantine
    _tokens_before: int = 0  # tokens of `isolated` before its isolation
    _is_releasing: bool = False  # `isolated` is cleared, and its cancel was sent to the engine

    def __bool__(self) -> bool:
        return bool(self.pending or self.cleared) or self.isolated is not None

    @property
    def suspects(self) -> list[Run]:
        """Runs that are neither cleared nor confirmed."""
        isolated = [self.isolated] if self.isolated and self.isolated.tokens <= self._tokens_before else []
        return [*isolated, *self.pending]

    @property
    def waiting(self) -> list[Run]:
        """Runs in quarantine that no engine has."""
        return [*self.pending, *self.cleared]

    def find_culprit(self, running: Collection[Run]) -> Run | None:
        """Return the run that crashed the engine with these runs; None if it is not certain."""
        isolated = self.isolated
        if isolated is None or isolated.stop_reason or isolated.tokens > self._tokens_before:
            return None
        assert list(running) == [isolated], "an isolated run is alone in the engine"
        return isolated

    def add_suspects(self, running: Iterable[Run], *, crashed: bool) -> list[Run]:
        """Add those runs of a lost engine that are suspects and were not being stopped; return them."""
        found = [run for run in running if run.stop_reason is None and (crashed or run is self.isolated)]
        self.isolated, self._is_releasing = None, False
        self.pending = sorted([*self.pending, *found], key=lambda run: run.tokens)
        return found

    def start_next(self) -> Run | None:
        """Isolate the next suspect and return it; None if one is isolated or none is left."""
        if self.isolated is None and self.pending:
            self.isolated = self.pending.pop(0)
            self._tokens_before = self.isolated.tokens
            return self.isolated
        return None

    def clear_isolated(self) -> Run | None:
        """Return the isolated run if it is cleared and must leave the engine to the next suspect; the last may stay."""
        run = self.isolated
        if run is None or run.tokens <= self._tokens_before or self._is_releasing:
            return None
        if not self.pending and not run.is_orphan:
            self.isolated = None
            return None
        self._is_releasing = True
        return run

    def release_cleared(self) -> list[Run]:
        """Return and remove the cleared runs, which may continue elsewhere."""
        found, self.cleared = self.cleared, []
        return found

    def park_cleared(self, run: Run) -> bool:
        """Keep a cleared run that the engine has released. Return False if the run was released for another reason."""
        if run is not self.isolated or not self._is_releasing or run.stop_reason or run.is_orphan:
            return False
        self.isolated, self._is_releasing = None, False
        self.cleared.append(run)
        return True

    def finish(self) -> list[Run]:
        """Return the cleared runs to restart together, once no suspect is left."""
        return [] if self.pending or self.isolated else self.release_cleared()

    def replace_with_orphan(self, orphan: Run, *, is_isolated: bool) -> None:
        """Put an orphan in the place of a suspect that has just been discarded."""
        if is_isolated:
            self.isolated = orphan
        else:
            self.pending.append(orphan)

    def discard(self, run: Run) -> bool:
        """Remove a run that has ended. Return True if no engine had it."""
        if run is self.isolated:
            self.isolated, self._is_releasing = None, False
        for waiting in (self.pending, self.cleared):
            if run in waiting:
                waiting.remove(run)
                return True
        return False


class QuarantineResult(NamedTuple):
    """Runs that the loss of an engine ends."""

    culprit: Run | None = None
    twins: Sequence[Run] = ()  # equal to the culprit
    untested: Sequence[Run] = ()  # of a tenant whose requests have crashed many engines
    cleared: Sequence[Run] = ()  # may continue elsewhere


TimerKey = tuple[str, str] | int  # the kind of timer and its lease_id, or the seq_id of a run with a deadline


@dataclass(slots=True)
class CrashQuarantine:
    """Moves suspects from the running runs to isolation, and limits the time for which they wait for an engine."""

    running: dict[int, Run]  # the run table's, like the next
    timers: Timers[TimerKey]
    max_wait_s: float = 30.0  # longest wait of a suspect for an engine
    isolation: SuspectIsolation = field(default_factory=SuspectIsolation)
    poison_list: PoisonList = field(default_factory=PoisonList)

    def on_engine_lost(self, now: float, *, crashed: bool) -> QuarantineResult:
        """Quarantine suspects, and return the runs that leave the quarantine.

        Suspects with the fingerprint of a confirmed run are confirmed, too, as isolating each would cost an engine.
        Suspects of a tenant with many confirmed runs are not tested, for the same reason.
        """
        running = list(self.running.values())
        culprit = self.isolation.find_culprit(running) if crashed else None
        if culprit:
            self.poison_list.confirm(culprit, now)
        for run in self.isolation.add_suspects([] if culprit else running, crashed=crashed):
            self._take_from_engine(run)
        self.set_wait_limits(now + self.max_wait_s)
        untested = [run for run in self.isolation.pending if self.poison_list.is_tenant_on_probation(run, now)]
        if culprit is None:
            return QuarantineResult(untested=untested)
        twins = [run for run in self.isolation.pending if run.fingerprint == culprit.fingerprint != 0]
        untested = [run for run in untested if run not in twins]
        return QuarantineResult(culprit, twins, untested, self.isolation.release_cleared())

    def set_wait_limits(self, until: float = math.inf) -> None:
        for run in self.isolation.waiting:
            self._set_wait_limit(run, until)

    def park_cleared(self, run: Run) -> bool:
        """Keep a cleared run that the engine has released. Return False if the run was released for another reason."""
        is_cleared = self.isolation.park_cleared(run)
        if is_cleared:
            self._take_from_engine(run)
        return is_cleared

    def is_suspect(self, run: Run) -> bool:
        return any(run is each for each in self.isolation.suspects)

    def replace_with_orphan(self, orphan: Run, now: float, *, is_isolated: bool) -> None:
        """Continue the quarantine with an orphan in place of a run that has ended for its edge."""
        self.isolation.replace_with_orphan(orphan, is_isolated=is_isolated)
        if is_isolated:
            self.running[orphan.seq_id] = orphan
        else:
            self._set_wait_limit(orphan, now + self.max_wait_s)

    def find_waiting(self, lease_id: str) -> Run | None:
        return next((run for run in self.isolation.waiting if run.lease_id == lease_id), None)

    def advance(self) -> tuple[Run | None, list[Run]]:
        """Return the cleared run to cancel in the engine, or else the runs to restart there."""
        if cleared := self.isolation.clear_isolated():
            return cleared, []
        if suspect := self.isolation.start_next():
            return None, [suspect]
        return None, self.isolation.finish()

    def poison_reports(self, now: float) -> list[PoisonReport]:
        """Return reports of all suspects and confirmed requests."""
        return self.poison_list.reports(self.isolation.suspects, now, self.max_wait_s)

    def _take_from_engine(self, run: Run) -> None:
        """Remove a run from the running ones. Its scheduler considers the worker, and thus its leases, lost."""
        del self.running[run.seq_id]
        self.timers.cancel(run.seq_id)
        self._set_wait_limit(run, math.inf)

    def _set_wait_limit(self, run: Run, until: float) -> None:
        until = min(until, run.deadline)
        if until < math.inf:
            self.timers.set(("quarantined", run.lease_id), until)
        else:
            self.timers.cancel(("quarantined", run.lease_id))
