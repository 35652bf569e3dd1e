"""Runs that crashed an engine, or may have, from one engine to the next. Knows no clock, pipe or stream."""

import math
from dataclasses import dataclass, field

from penstock.worker.quarantine.poison_list import PoisonList, PoisonReport
from penstock.worker.quarantine.quarantine__worker_probation import SuspectIsolation
from penstock.worker.runs.run import Run
from penstock.worker.runs.timers import Timers

TimerKey = tuple[str, str] | int  # why and for which lease, or the number of a run that has a deadline


@dataclass(slots=True)
class CrashQuarantine:
    """Takes suspects out of what runs, and bounds how long they wait for an engine."""

    running: dict[int, Run]  # the run book's own, as the next
    timers: Timers[TimerKey]
    max_wait_s: float = 30.0  # s that a run on probation waits for an engine
    isolation: SuspectIsolation = field(default_factory=SuspectIsolation)  # those held are not running
    poison_list: PoisonList = field(default_factory=PoisonList)

    def on_engine_lost(self, now: float, *, crashed: bool) -> tuple[list[Run], list[Run]]:
        """Keep what the next engine is to try; return who is found guilty, and those who need not wait any longer.

        Whatever is the same as the run that was tried is as guilty: trying each would cost an engine each.
        """
        running = list(self.running.values())
        culprit = self.isolation.find_culprit(running) if crashed else None
        if culprit:
            self.poison_list.confirm(culprit, now)
        for run in self.isolation.add_suspects([] if culprit else running, crashed=crashed):
            self._take_from_engine(run)
        self.set_wait_limits(now + self.max_wait_s)
        if culprit is None:
            return [], []
        twins = [run for run in self.isolation.pending if run.fingerprint == culprit.fingerprint != 0]
        return [culprit, *twins], [*twins, *self.isolation.release_cleared()]

    def set_wait_limits(self, until: float = math.inf) -> None:
        for run in self.isolation.waiting:
            self._set_wait_limit(run, until)

    def park_cleared(self, run: Run) -> bool:
        """Keep a run that the engine let go of as it was acquitted; False where that was not why it did."""
        is_acquitted = self.isolation.park_cleared(run)
        if is_acquitted:
            self._take_from_engine(run)
        return is_acquitted

    def is_suspect(self, run: Run) -> bool:
        return any(run is each for each in self.isolation.suspects)

    def replace_with_orphan(self, orphan: Run, now: float, *, is_isolated: bool) -> None:
        """Go on with the trial of a run that is over for whoever waited for it."""
        self.isolation.replace_with_orphan(orphan, is_isolated=is_isolated)
        if is_isolated:
            self.running[orphan.seq_id] = orphan
        else:
            self._set_wait_limit(orphan, now + self.max_wait_s)

    def has_waiting(self, lease_id: str) -> bool:
        return any(run.lease_id == lease_id for run in self.isolation.waiting)

    def poison_reports(self, now: float) -> list[PoisonReport]:
        """Return what is known of whoever crashed an engine here, or may have."""
        return self.poison_list.reports(self.isolation.suspects, now, self.max_wait_s)

    def _take_from_engine(self, run: Run) -> None:
        """Keep a run that no engine has. Its scheduler takes this worker for gone, and its leases with it."""
        del self.running[run.seq_id]
        self.timers.cancel(run.seq_id)
        self._set_wait_limit(run, math.inf)

    def _set_wait_limit(self, run: Run, until: float) -> None:
        until = min(until, run.deadline)
        if until < math.inf:
            self.timers.set(("held", run.lease_id), until)
        else:
            self.timers.cancel(("held", run.lease_id))
