"""Performs the effects of the run table: frames to edges, messages to the engine, reports to the scheduler."""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from penstock.chassis.streams.link import Peer
from penstock.mesh.v1 import worker_pb2 as pb
from penstock.worker.engine.host.messages import Add, Cancel
from penstock.worker.engine_host.state import EngineState
from penstock.worker.engine_host.supervisor import EngineSupervisor
from penstock.worker.frames import ended_frame, step_frame
from penstock.worker.quarantine.broadcast import PoisonBroadcast
from penstock.worker.runs.effects import (
    AddSequence,
    CancelSequence,
    Effect,
    LeasesReleased,
    LeaseStarted,
    RunEnded,
    StepTokens,
)
from penstock.worker.runs.table import RunTable
from penstock.worker.scheduler_session.client import SchedulerClient
from penstock.worker.telemetry import RunTelemetry

EdgePeer = Peer[pb.ExecuteResponse, pb.ExecuteRequest]


class EffectDispatcher:
    """Plain calls on the event loop. Keeps one timer, armed for the run table's next expiry."""

    def __init__(
        self,
        runs: RunTable,
        peers: Mapping[int, EdgePeer],
        *,
        now: Callable[[], float],
        engine: EngineSupervisor,
        state: EngineState,
        scheduler: SchedulerClient,
        poison_broadcast: PoisonBroadcast,
        telemetry: RunTelemetry,
    ) -> None:
        """`peers` are the open edge streams by number, kept by the caller."""
        self.performed = asyncio.Event()  # set after each call of `perform`
        self._now = now
        self._runs = runs
        self._peers = peers
        self._engine = engine
        self._state = state
        self._poison_broadcast = poison_broadcast
        self._telemetry = telemetry
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_at: float | None = None
        self._handlers: dict[type, Callable[..., object]] = {
            AddSequence: self._add_sequence,
            CancelSequence: self._cancel_sequence,
            StepTokens: lambda effect: self._send(effect.stream, step_frame(effect)),
            RunEnded: self._on_run_ended,
            LeaseStarted: lambda effect: scheduler.send_started(effect.lease_id),
            LeasesReleased: lambda effect: scheduler.send_released(effect, state.throughput.steps),
        }

    def perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self._handlers[type(effect)](effect)
        if self._poison_broadcast.is_active:
            self._poison_broadcast.send_changes()
        self._rearm_timer()
        self.performed.set()

    def _send(self, stream: int, frame: pb.ExecuteResponse) -> None:
        peer = self._peers.get(stream)
        if peer:
            peer.send(frame)  # closes the stream of an edge that does not read; `close_stream` then ends its runs

    def _add_sequence(self, effect: AddSequence) -> None:
        self._state.on_sent(effect.spec.seq_id, len(effect.spec.token_ids), self._now())
        self._engine.send(Add(effect.spec))  # without an engine, `on_engine_lost` is about to end the run

    def _cancel_sequence(self, effect: CancelSequence) -> None:
        self._engine.send(Cancel(effect.seq_id))
        # The loop writes to the pipe at the end of this turn, and many cancels can make the turn a long one.
        asyncio.get_running_loop().call_soon(lambda: self._runs.on_cancel_sent(effect.seq_id, self._now()))

    def _on_run_ended(self, effect: RunEnded) -> None:
        if effect.is_reported:
            self._send(effect.run.stream, ended_frame(effect))
        if not effect.run.is_orphan:
            self._telemetry.record(effect)

    def _expire(self) -> None:
        self._timer_due_at = None
        self.perform(self._runs.expire(self._now()))

    def _rearm_timer(self) -> None:
        """Arm the timer for the run table's next expiry; disarm it if there is none."""
        due = self._runs.next_expiry
        if due == self._timer_due_at:
            return
        if self._timer:
            self._timer.cancel()
        self._timer_due_at = due
        if due is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due - self._now()), self._expire)
