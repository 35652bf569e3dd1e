"""A worker under virtual time: runs that edges start, an engine that takes its law's time, reports to a scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.mesh.v1.scheduler_pb2 import LoadReport as LoadReportMessage
from penstock.mesh.v1.scheduler_pb2 import PrefixCacheUpdate as CacheFrame
from penstock.mesh.v1.scheduler_pb2 import Profile, ServedLease
from penstock.simulator.mesh.engine import NEVER, ExactEngine, Run, SimulatedEngine, Stepped
from penstock.simulator.mesh.event_queue import Events
from penstock.simulator.mesh.fast_engine import FastEngine
from penstock.simulator.mesh.fast_forward import Leap, SteadyPace
from penstock.simulator.scenario import WorkerKind
from penstock.worker.cache_news import PrefixCacheTracker
from penstock.worker.engine.interface import StepResult
from penstock.worker.frames import lease_progress_message, report_message
from penstock.worker.load import LoadReport
from penstock.worker.news import PROGRESS_INTERVAL_S
from penstock.worker.run import LeaseProgress

MODEL = "simulated"


class WorkerPeers(Protocol):
    """Whom a worker talks to; each hears of it a link delay later."""

    def started(self, worker: str, lease_id: str) -> None: ...

    def progress(self, worker: str, served: Sequence[ServedLease]) -> None: ...

    def released(self, worker: str, served: Sequence[ServedLease]) -> None: ...

    def report(self, worker: str, report: LoadReportMessage) -> None: ...

    def cache_changed(self, worker: str, news: CacheFrame) -> None: ...

    def run_over(self, worker: "SimWorker", run: Run) -> None:
        """A run has ended or was let go; its edge hears."""

    @property
    def watches_steps(self) -> bool:
        """Tell whether to be called at each single step."""

    def stepped(self, worker: "SimWorker") -> None:
        """A step is over, and what it ended is still here."""


@dataclass(slots=True)
class Tally:
    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    busy: float = 0.0  # s

    def note(self, prefill_tokens: int, decodes: int, duration: float) -> None:
        self.steps += 1
        self.prefill_tokens += prefill_tokens
        self.decode_tokens += decodes
        self.busy += duration

    def note_decodes(self, decodes: int, durations: Sequence[float]) -> None:
        self.steps += len(durations)
        self.decode_tokens += decodes * len(durations)
        for duration in durations:
            self.busy += duration


class SimWorker:
    """One life of a worker: a lost one comes back as another."""

    def __init__(self, name: str, kind: WorkerKind, engine: str, events: Events, peers: WorkerPeers) -> None:
        self.name = name
        self.kind = kind
        self.is_alive = True
        self.engine: SimulatedEngine = FastEngine(kind) if engine == "fast" else ExactEngine(kind)
        self.leases: dict[int, str] = {}  # by run
        self.runs: dict[int, Run] = {}
        self._arrived: dict[int, float] = {}  # s, likewise
        self.ends: list[float] = []  # when each step that computed or let go was over
        self.tally = Tally()
        self._events = events
        self._peers = peers
        self._is_watched = peers.watches_steps
        self._is_stepping = False
        self._pace = SteadyPace()
        self._leap: Leap | None = None
        self._cache = PrefixCacheTracker()
        self._shares = False  # has kept anything for others
        self._told: LoadReport | None = None
        self._told_at = 0.0  # s; the last progress
        self._noted = StepResult(0)  # one for all steps: only its counts are read

    @property
    def profile(self) -> Profile:
        kind = self.kind
        return Profile(
            model=MODEL,
            slots=kind.slots,
            kv_blocks=kind.kv_blocks,
            block_size=kind.block_size,
            context_length=kind.context_length,
        )

    # What edges do.

    def start(self, lease_id: str, run: Run) -> None:
        self.leases[run.run_id], self.runs[run.run_id] = lease_id, run
        self._arrived[run.run_id] = self._events.now
        self._break_leap()
        self.engine.add(run)
        self._peers.started(self.name, lease_id)
        self._go_on()

    def cancel(self, run: Run) -> None:
        if self.is_alive and run.run_id in self.runs:
            self._break_leap()
            self.engine.cancel(run)
            self._go_on()

    def die(self) -> list[Run]:
        """Stop for good; returns what ran, the step under way lost."""
        self.catch_up()
        self.is_alive, self._leap = False, None
        return list(self.runs.values())

    # What a run has come to.

    def emitted(self, run: Run) -> int:
        """Tokens that have left: those of steps that are over."""
        if run.first == NEVER:
            return 0
        if self._leap:
            self.catch_up()
        last = len(self.ends) - 1
        if run.last != NEVER and run.last < last:
            last = run.last
        return last - run.first + 1 if last >= run.first else 0

    def engine_tokens(self, run: Run) -> int:
        """Positions that the engine has computed for it, the step under way included."""
        if run.first == NEVER:
            return run.prefilled
        self.catch_up()
        return run.prefilled + (self.tally.steps - 1 if run.last == NEVER else run.last) - run.first

    # What time does.

    def _go_on(self) -> None:
        if not self._is_stepping and self.engine.has_work:
            self._is_stepping = True
            if leap := self._foresee():
                self.engine.skip(1)
                self.tally.note_decodes(leap.decodes, leap.durations[:1])
                self._set_out(leap)
            else:
                self._step()

    def _step(self) -> None:
        stepped = self.engine.step()
        self.tally.note(stepped.prefill_tokens, stepped.decode_seqs, stepped.duration)
        self._events.at(self._events.now + stepped.duration, self._stepped, stepped)

    def _foresee(self) -> Leap | None:
        if self._told is None or self._is_watched:
            return None
        decodes, durations = self.engine.quiet(self._pace.unheard(self._told))
        if len(durations) < 2:
            return None
        return self._pace.leap(decodes, durations, self._told, self._events.now, self._told_at + PROGRESS_INTERVAL_S)

    def _set_out(self, leap: Leap) -> None:
        self._leap = leap
        self._events.at(leap.ends[-1], self._arrive, leap)

    def _arrive(self, leap: Leap) -> None:
        if leap is self._leap:
            self.catch_up()
            self._leap = None
            self._stepped(Stepped(leap.durations[-1], 0, leap.decodes, (), ()))

    def catch_up(self) -> None:
        """Let those steps of a leap be over that are by now."""
        if (leap := self._leap) is None or not (count := leap.passed(self._events.now)):
            return
        over = leap.over
        leap.over += count
        self.ends += leap.ends[over : leap.over]
        self._noted.prefill_tokens, self._noted.decode_seqs = 0, leap.decodes
        for duration in leap.durations[over : leap.over]:
            self._pace.record(self._noted, duration)
        self.engine.skip(count)
        self.tally.note_decodes(leap.decodes, leap.durations[over + 1 : leap.over + 1])

    def _break_leap(self) -> None:
        """Let what comes now come before the step after the one that is under way."""
        if self._leap:
            self.catch_up()
            if not self._leap.is_last:
                self._set_out(self._leap.under_way())

    def _stepped(self, stepped: Stepped) -> None:
        if not self.is_alive:
            return
        self.ends.append(self._events.now)
        if self._is_watched:
            self._peers.stepped(self)
        if over := [*stepped.finished, *stepped.cancelled]:
            self._peers.released(self.name, [self._served(run) for run in over])
        for run in over:
            del self.runs[run.run_id], self.leases[run.run_id], self._arrived[run.run_id]
            self._peers.run_over(self, run)
        self._report(stepped)
        if self._shares or stepped.cache_news:
            self._tell_cache(stepped)
        if self._events.now >= self._told_at + PROGRESS_INTERVAL_S:
            self._tell_progress()
        self._is_stepping = False
        self._go_on()

    def _served(self, run: Run) -> ServedLease:
        emitted = self.emitted(run)
        first = self.ends[run.first] - self._arrived[run.run_id] if emitted else None
        return lease_progress_message(LeaseProgress(self.leases[run.run_id], run.prefilled, emitted, first))

    def _tell_cache(self, stepped: Stepped) -> None:
        self._shares = True
        self._cache.apply(stepped.cache_news)
        if change := self._cache.pop_delta(self._events.now, at_once=not self.runs):
            self._peers.cache_changed(self.name, CacheFrame(**change._asdict()))

    def _tell_progress(self) -> None:
        self._told_at = self._events.now
        if served := [self._served(run) for run in self.runs.values() if run.prefilled]:
            self._peers.progress(self.name, served)

    def _note(self, prefill_tokens: int, decodes: int, duration: float) -> None:
        self._noted.prefill_tokens, self._noted.decode_seqs = prefill_tokens, decodes
        self._pace.record(self._noted, duration)

    def _report(self, stepped: Stepped) -> None:
        self._note(stepped.prefill_tokens, stepped.decode_seqs, stepped.duration)
        pace = self._pace
        load = LoadReport(
            *self.engine.fill(),
            step_time=pace.step_time,
            tokens_per_second=pace.tokens_per_second,
            prefill_tokens_per_second=pace.prefill_tokens_per_second,
            steps=pace.steps,
            decode_step_time=pace.decode_step_time,
            prefill_token_time=pace.prefill_token_time,
            step_tokens=pace.max_step_tokens,
        )
        if load.differs_from(self._told):
            self._told = load
            self._peers.report(self.name, report_message(load))
