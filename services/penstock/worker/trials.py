"""Runs that crashed an engine, or may have, from one engine to the next. Knows no clock, pipe or stream."""

import math
from dataclasses import dataclass, field

from penstock.worker.blames import Blame, Blames
from penstock.worker.probation import Probation
from penstock.worker.run import Run
from penstock.worker.timers import Timers

DueKey = tuple[str, str] | int  # why and for which lease, or the number of a run that has a deadline


@dataclass(slots=True)
class Trials:
    """Takes suspects out of what runs, and bounds how long they wait for an engine."""

    running: dict[int, Run]  # the run book's own, as the next
    due: Timers[DueKey]
    hold_for: float = 30.0  # s that a run on probation waits for an engine
    probation: Probation = field(default_factory=Probation)  # those held are not running
    blames: Blames = field(default_factory=Blames)

    def lose_engine(self, now: float, *, crashed: bool) -> tuple[list[Run], list[Run]]:
        """Keep what the next engine is to try; return who is found guilty, and those who need not wait any longer.

        Whatever is the same as the run that was tried is as guilty: trying each would cost an engine each.
        """
        running = list(self.running.values())
        culprit = self.probation.culprit(running) if crashed else None
        if culprit:
            self.blames.convict(culprit, now)
        for run in self.probation.hold([] if culprit else running, crashed=crashed):
            self._keep(run)
        self.time_waits(now + self.hold_for)
        if culprit is None:
            return [], []
        twins = [run for run in self.probation.held if run.fingerprint == culprit.fingerprint != 0]
        return [culprit, *twins], [*twins, *self.probation.release()]

    def time_waits(self, until: float = math.inf) -> None:
        for run in self.probation.waiting:
            self._time_wait(run, until)

    def set_aside(self, run: Run) -> bool:
        """Keep a run that the engine let go of as it was acquitted; False where that was not why it did."""
        is_acquitted = self.probation.set_aside(run)
        if is_acquitted:
            self._keep(run)
        return is_acquitted

    def is_suspect(self, run: Run) -> bool:
        return any(run is each for each in self.probation.suspects)

    def haunt(self, ghost: Run, now: float, *, is_tried: bool) -> None:
        """Go on with the trial of a run that is over for whoever waited for it."""
        self.probation.haunt(ghost, is_tried=is_tried)
        if is_tried:
            self.running[ghost.seq_id] = ghost
        else:
            self._time_wait(ghost, now + self.hold_for)

    def holds(self, lease_id: str) -> bool:
        return any(run.lease_id == lease_id for run in self.probation.waiting)

    def blamed(self, now: float) -> list[Blame]:
        """Return what is known of whoever crashed an engine here, or may have."""
        return self.blames.all(self.probation.suspects, now, self.hold_for)

    def _keep(self, run: Run) -> None:
        """Keep a run that no engine has. Its scheduler takes this worker for gone, and its leases with it."""
        del self.running[run.seq_id]
        self.due.drop(run.seq_id)
        self._time_wait(run, math.inf)

    def _time_wait(self, run: Run, until: float) -> None:
        until = min(until, run.deadline)
        if until < math.inf:
            self.due.set(("held", run.lease_id), until)
        else:
            self.due.drop(("held", run.lease_id))
