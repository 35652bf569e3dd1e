"""Simulated worker: runs of edges, an engine with modelled step times, and reports to a scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.mesh.v1.scheduler_pb2 import LoadReport as LoadReportMessage
from penstock.mesh.v1.scheduler_pb2 import PrefixCacheUpdate, Profile, Progress, ServedLease
from penstock.simulator.mesh.engine import NO_STEP, EngineModel, ExactEngine, SimRun, SimStepResult
from penstock.simulator.mesh.event_queue import SimEventQueue
from penstock.simulator.mesh.fast_engine import FastEngine, FastForward, ForecastingThroughput
from penstock.simulator.scenario import WorkerKind
from penstock.worker.engine.interface import StepResult
from penstock.worker.frames import lease_progress_message, progress_message, report_message
from penstock.worker.runs.run import LeaseProgress
from penstock.worker.scheduler_session.load_report import LoadReport
from penstock.worker.scheduler_session.prefix_cache_delta import PrefixCacheTracker
from penstock.worker.scheduler_session.progress import ProgressReporter

MODEL = "simulated"


class WorkerPeers(Protocol):
    """The peers of a worker, which receive each frame after the link delay."""

    def send_started(self, worker: str, lease_id: str) -> None: ...

    def send_progress(self, worker: str, progress: Progress) -> None: ...

    def send_released(self, worker: str, served: Sequence[ServedLease], steps: int) -> None: ...

    def send_report(self, worker: str, report: LoadReportMessage) -> None: ...

    def send_cache_update(self, worker: str, update: PrefixCacheUpdate) -> None: ...

    def send_run_ended(self, worker: "SimWorker", run: SimRun) -> None:
        """A run has ended or was cancelled; its edge is notified."""

    def send_run_revoked(self, worker: "SimWorker", run: SimRun) -> None:
        """A run was ended because its lease was revoked; its edge is notified."""

    @property
    def observes_steps(self) -> bool:
        """Whether `on_step` must be called after every step."""

    def on_step(self, worker: "SimWorker") -> None:
        """A step has ended; the runs that it ended are still present."""


@dataclass(slots=True)
class StepTotals:
    """Sums over the steps of one worker."""

    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    busy_s: float = 0.0

    def record(self, prefill_tokens: int, decodes: int, duration: float) -> None:
        self.steps += 1
        self.prefill_tokens += prefill_tokens
        self.decode_tokens += decodes
        self.busy_s += duration

    def record_decodes(self, decodes: int, durations: Sequence[float]) -> None:
        self.steps += len(durations)
        self.decode_tokens += decodes * len(durations)
        for duration in durations:
            self.busy_s += duration


class SimWorker:
    """One life of a worker: a lost worker returns as a new object."""

    def __init__(self, name: str, kind: WorkerKind, engine: str, events: SimEventQueue, peers: WorkerPeers) -> None:
        self.name = name
        self.kind = kind
        self.is_alive = True
        self.engine: EngineModel = FastEngine(kind) if engine == "fast" else ExactEngine(kind)
        self.leases: dict[int, str] = {}  # lease id by run
        self.runs: dict[int, SimRun] = {}
        self._arrived_at: dict[int, float] = {}  # s, by run
        self._cancelled: set[int] = set()  # runs that have not ended, for whatever reason
        self._revoked: set[int] = set()  # runs whose leases were revoked
        self.step_ends: list[float] = []  # s; end of each step that computed or cancelled
        self.totals = StepTotals()
        self._events = events
        self._peers = peers
        self._is_observed = peers.observes_steps
        self._is_stepping = False
        self._throughput = ForecastingThroughput()
        self._fast_forward: FastForward | None = None
        self._cache_tracker = PrefixCacheTracker()
        self._has_shared_blocks = False  # whether any block has been cached for other prompts
        self._last_report: LoadReport | None = None
        self._progress = ProgressReporter()
        self._step_counts = StepResult(0)  # reused for every step; only its counts are read

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

    # Called by edges.

    def start(self, lease_id: str, run: SimRun) -> None:
        self.leases[run.run_id], self.runs[run.run_id] = lease_id, run
        self._arrived_at[run.run_id] = self._events.now
        self._stop_fast_forward()
        self.engine.add(run)
        self._peers.send_started(self.name, lease_id)
        self._start_step()

    def cancel(self, run: SimRun) -> None:
        if self.is_alive and run.run_id in self.runs and run.run_id not in self._cancelled:
            self._cancelled.add(run.run_id)
            self._stop_fast_forward()
            self.engine.cancel(run)
            self._start_step()

    # Called by schedulers.

    def revoke(self, lease_id: str) -> None:
        """End the run of a lease. The worker has no state of a lease that no edge has started."""
        run = next((self.runs[each] for each, lease in self.leases.items() if lease == lease_id), None)
        if run and run.run_id not in self._cancelled:
            self._revoked.add(run.run_id)
            self.cancel(run)

    def die(self) -> list[SimRun]:
        """Stop the worker; return its runs. The current step is lost."""
        self.catch_up()
        self.is_alive, self._fast_forward = False, None
        return list(self.runs.values())

    # State of a run.

    def emitted_tokens(self, run: SimRun) -> int:
        """Return the tokens that the run has emitted, in steps that have ended."""
        if run.first_token_step == NO_STEP:
            return 0
        if self._fast_forward:
            self.catch_up()
        last = len(self.step_ends) - 1
        if run.last_token_step != NO_STEP and run.last_token_step < last:
            last = run.last_token_step
        return last - run.first_token_step + 1 if last >= run.first_token_step else 0

    def computed_tokens(self, run: SimRun) -> int:
        """Return the positions that the engine has computed for the run, the current step included."""
        if run.first_token_step == NO_STEP:
            return run.prefilled_tokens
        self.catch_up()
        return (
            run.prefilled_tokens
            + (self.totals.steps - 1 if run.last_token_step == NO_STEP else run.last_token_step)
            - run.first_token_step
        )

    # Steps.

    def _start_step(self) -> None:
        if not self._is_stepping and self.engine.has_work:
            self._is_stepping = True
            if fast_forward := self._plan_fast_forward():
                self.engine.skip(1)
                self.totals.record_decodes(fast_forward.decode_seqs, fast_forward.durations[:1])
                self._schedule_fast_forward(fast_forward)
            else:
                self._run_step()

    def _run_step(self) -> None:
        stepped = self.engine.step()
        self.totals.record(stepped.prefill_tokens, stepped.decode_seqs, stepped.duration)
        self._events.schedule(self._events.now + stepped.duration, self._on_step_ended, stepped)

    def _plan_fast_forward(self) -> FastForward | None:
        if self._last_report is None or self._is_observed:
            return None
        decodes, durations = self.engine.forecast_decodes(self._throughput.steps_until_report(self._last_report))
        if len(durations) < 2:
            return None
        return self._throughput.fast_forward(
            decodes, durations, self._last_report, self._events.now, self._progress.due_at
        )

    def _schedule_fast_forward(self, fast_forward: FastForward) -> None:
        self._fast_forward = fast_forward
        self._events.schedule(fast_forward.ends_at[-1], self._end_fast_forward, fast_forward)

    def _end_fast_forward(self, fast_forward: FastForward) -> None:
        if fast_forward is self._fast_forward:
            self.catch_up()
            self._fast_forward = None
            self._on_step_ended(SimStepResult(fast_forward.durations[-1], 0, fast_forward.decode_seqs, (), ()))

    def catch_up(self) -> None:
        """Apply the steps of the fast forward that have ended by now."""
        if (forward := self._fast_forward) is None or not (count := forward.newly_ended(self._events.now)):
            return
        ended = forward.steps_ended
        forward.steps_ended += count
        self.step_ends += forward.ends_at[ended : forward.steps_ended]
        self._step_counts.prefill_tokens, self._step_counts.decode_seqs = 0, forward.decode_seqs
        for duration in forward.durations[ended : forward.steps_ended]:
            self._throughput.record(self._step_counts, duration)
        self.engine.skip(count)
        self.totals.record_decodes(forward.decode_seqs, forward.durations[ended + 1 : forward.steps_ended + 1])

    def _stop_fast_forward(self) -> None:
        """End the fast forward after the current step, so that the next step includes a change of the batch."""
        if self._fast_forward:
            self.catch_up()
            if not self._fast_forward.is_in_last_step:
                self._schedule_fast_forward(self._fast_forward.current_step())

    def _on_step_ended(self, stepped: SimStepResult) -> None:
        if not self.is_alive:
            return
        self.step_ends.append(self._events.now)
        if self._is_observed:
            self._peers.on_step(self)
        if ended := [*stepped.finished, *stepped.cancelled]:
            served = [lease_progress_message(self._progress_of(run)) for run in ended]
            self._peers.send_released(self.name, served, self._throughput.steps + 1)
        for run in ended:
            del self.runs[run.run_id], self.leases[run.run_id], self._arrived_at[run.run_id]
            is_revoked = run.run_id in self._revoked and run in stepped.cancelled
            self._revoked.discard(run.run_id)
            self._cancelled.discard(run.run_id)
            (self._peers.send_run_revoked if is_revoked else self._peers.send_run_ended)(self, run)
        self._send_report(stepped)
        if self._has_shared_blocks or stepped.cache_changes:
            self._send_cache_changes(stepped)
        self._send_progress()
        self._is_stepping = False
        self._start_step()

    def _progress_of(self, run: SimRun) -> LeaseProgress:
        emitted = self.emitted_tokens(run)
        first = self.step_ends[run.first_token_step] - self._arrived_at[run.run_id] if emitted else None
        return LeaseProgress(self.leases[run.run_id], run.prefilled_tokens, emitted, first)

    def _send_cache_changes(self, stepped: SimStepResult) -> None:
        self._has_shared_blocks = True
        self._cache_tracker.apply(stepped.cache_changes)
        if delta := self._cache_tracker.pop_delta(self._events.now, at_once=not self.runs):
            self._peers.send_cache_update(self.name, PrefixCacheUpdate(**delta._asdict()))

    def _send_progress(self) -> None:
        if report := self._progress.take_due(map(self._progress_of, self.runs.values()), self._events.now):
            self._peers.send_progress(self.name, progress_message(report, self._throughput.steps))

    def _record_step(self, prefill_tokens: int, decodes: int, duration: float) -> None:
        self._step_counts.prefill_tokens, self._step_counts.decode_seqs = prefill_tokens, decodes
        self._throughput.record(self._step_counts, duration)

    def _send_report(self, stepped: SimStepResult) -> None:
        self._record_step(stepped.prefill_tokens, stepped.decode_seqs, stepped.duration)
        throughput = self._throughput
        report = LoadReport(
            *self.engine.occupancy(),
            step_time=throughput.step_time,
            tokens_per_second=throughput.tokens_per_second,
            prefill_tokens_per_second=throughput.prefill_tokens_per_second,
            steps=throughput.steps,
            decode_step_time=throughput.decode_step_time,
            prefill_token_time=throughput.prefill_token_time,
            step_tokens=throughput.max_step_tokens,
        )
        if report.differs_from(self._last_report):
            self._last_report = report
            self._peers.send_report(self.name, report_message(report))
