"""Runs of which one may have crashed the engine. Knows no clock and no engine."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from penstock.worker.quarantine.poison_list import PoisonList, PoisonReport
from penstock.worker.runs.run import Run
from penstock.worker.runs.timers import Timers


@dataclass(slots=True)
class SuspectIsolation:
    """Who is to blame for an engine that crashed, found out at the cost of no second worker.

    Whatever crashed an engine by itself would crash the next one too, wherever it ran. So:

    1. Every run that an engine had when it crashed is a suspect, and none leaves this worker: nobody is left to say
       which of them the last step was at.
    2. The next engine has one suspect at a time and nothing else, those first whose prompts were being computed.
    3. One that comes further than it had is acquitted. It waits outside of the engine until all are: beside another
       suspect it would be one again, and so would the other.
    4. One that crashes the engine before that was alone in it, and where it was when the first one crashed: it is
       guilty. Those acquitted by then may go where they like, the others are tried yet: it need not be the only one.
    5. Whoever is a suspect is tried though nobody waits for its answer any more: the same request may come again.
    6. An engine that is killed from outside says nothing of what it had: who was being tried is tried again.
    7. A scheduler is told of it all the while, though this worker takes nothing: one that starts again, or that the
       worker could not reach before, is to hear of a suspect before it places it elsewhere. Queues give them time. The
       others are told as well, as the worker's own may be out of hearing without anybody's having noticed.

    So a run that crashes every engine at some token does so twice, on one worker, and nobody else is told it was him.
    Two things nobody can know in time. The same request sent twice may run on two workers when the first of them loses
    its engine: to keep one from running beside the other would cost all who ask the same, and they are many. And where
    a worker has one scheduler alone, which falls silent just then, a request whose edge is lost as well is placed
    elsewhere until the silence is noticed.
    """

    pending: list[Run] = field(default_factory=list)  # wait for their turn
    isolated: Run | None = None  # has it
    cleared: list[Run] = field(default_factory=list)  # wait for the others
    _tokens_before: int = 0  # tokens that `tried` had before
    _is_releasing: bool = False  # `tried` is acquitted, and the engine has been told to let go of it

    def __bool__(self) -> bool:
        return bool(self.pending or self.cleared) or self.isolated is not None

    @property
    def suspects(self) -> list[Run]:
        """Those of whom it is not known yet."""
        tried = [self.isolated] if self.isolated and self.isolated.tokens <= self._tokens_before else []
        return [*tried, *self.pending]

    @property
    def waiting(self) -> list[Run]:
        """Those that no engine has."""
        return [*self.pending, *self.cleared]

    def find_culprit(self, running: Collection[Run]) -> Run | None:
        """Return who crashed the engine that had those runs, where that is beyond doubt."""
        tried = self.isolated
        if tried is None or tried.stop_reason or tried.tokens > self._tokens_before:
            return None
        assert list(running) == [tried], "whoever is tried is alone"
        return tried

    def add_suspects(self, running: Iterable[Run], *, crashed: bool) -> list[Run]:
        """Have the next engine try those of a lost one's runs that are suspects and do not end anyway; return them."""
        found = [run for run in running if run.stop_reason is None and (crashed or run is self.isolated)]
        self.isolated, self._is_releasing = None, False
        self.pending = sorted([*self.pending, *found], key=lambda run: run.tokens)
        return found

    def start_next(self) -> Run | None:
        """Return whose turn it is where nobody is being tried."""
        if self.isolated is None and self.pending:
            self.isolated = self.pending.pop(0)
            self._tokens_before = self.isolated.tokens
            return self.isolated
        return None

    def clear_isolated(self) -> Run | None:
        """Return `tried` where it came further than it had and has to make room for the next; the last may run on."""
        run = self.isolated
        if run is None or run.tokens <= self._tokens_before or self._is_releasing:
            return None
        if not self.pending and not run.is_orphan:
            self.isolated = None
            return None
        self._is_releasing = True
        return run

    def release_cleared(self) -> list[Run]:
        """Return who may leave, as others keep the next engine to themselves."""
        found, self.cleared = self.cleared, []
        return found

    def park_cleared(self, run: Run) -> bool:
        """Have a run that the engine let go of wait for the others; False where that was not why it did."""
        if run is not self.isolated or not self._is_releasing or run.stop_reason or run.is_orphan:
            return False
        self.isolated, self._is_releasing = None, False
        self.cleared.append(run)
        return True

    def finish(self) -> list[Run]:
        """Return who may go on together, once nobody is a suspect any more."""
        return [] if self.pending or self.isolated else self.release_cleared()

    def replace_with_orphan(self, orphan: Run, *, is_isolated: bool) -> None:
        """Have a ghost take the place of a suspect that was dropped a moment ago."""
        if is_isolated:
            self.isolated = orphan
        else:
            self.pending.append(orphan)

    def discard(self, run: Run) -> bool:
        """Forget a run that is over; True where no engine had it."""
        if run is self.isolated:
            self.isolated, self._is_releasing = None, False
        for waiting in (self.pending, self.cleared):
            if run in waiting:
                waiting.remove(run)
                return True
        return False


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
            self.timers.set(("quarantined", run.lease_id), until)
        else:
            self.timers.cancel(("quarantined", run.lease_id))
