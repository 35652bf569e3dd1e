"""The worker's front: hears edges, its scheduler, its engine and the clock, and does what the run book says.

Owns no policy: every event is one call of the book, and every effect one thing done at once on the event loop.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import structlog

from penstock.chassis.errors import InvalidArgument
from penstock.chassis.lifecycle import background, request_stop
from penstock.chassis.streams.link import Peer
from penstock.mesh.v1 import scheduler_pb2
from penstock.mesh.v1 import worker_pb2 as pb
from penstock.v1.stream_pb2 import End, Hello
from penstock.worker.config import WorkerConfig
from penstock.worker.engine.interface import Capacity
from penstock.worker.engine.messages import Add, AddRejected, Cancel, EngineFatal, EngineReady, StepCompleted
from penstock.worker.engine.model_card import ModelCard
from penstock.worker.engine_host.state import EngineState
from penstock.worker.engine_host.supervisor import EngineSupervisor
from penstock.worker.frames import ended_frame, grant_from, profile_message, run_from, step_frame, unavailable_profile
from penstock.worker.quarantine.broadcast import PoisonBroadcast
from penstock.worker.runs import errors
from penstock.worker.runs.effects import (
    AddSequence,
    CancelSequence,
    Effect,
    LeasesReleased,
    LeaseStarted,
    RunEnded,
    StepTokens,
)
from penstock.worker.runs.leases import LeaseTable
from penstock.worker.runs.table import RunTable
from penstock.worker.scheduler_session.client import SchedulerClient
from penstock.worker.scheduler_session.prefix_cache_delta import PrefixCacheTracker
from penstock.worker.telemetry import RunTelemetry

log = structlog.get_logger()

EdgePeer = Peer[pb.ExecuteResponse, pb.ExecuteRequest]

RESTART_MARGIN_S = (
    45.0  # s; beside loading twice: how long runs on probation wait for an engine, above its longest backoff
)
STALL_TICKS = 8  # in which an engine has to be silent: who stood still itself has counted one of them
HAND_BACK_TIMEOUT_S = 1.0  # s; for edges to leave after our `end`


class WorkerRuntime:
    """The object that the worker's parts meet in. `hello` may get its address later, once that is bound."""

    def __init__(self, config: WorkerConfig, hello: Hello) -> None:
        self.hello = hello
        self.on_ready: Callable[[bool], None] = lambda _: None  # hears when the engine can take runs, and when no more
        self.runs = RunTable(leases=LeaseTable(hello.instance_id), lease_announce_timeout=config.lease_announce_timeout)
        self.state = EngineState()
        self.prefix_cache = PrefixCacheTracker()
        self.engine = EngineSupervisor(
            config.engine_options(),
            on_message=self._on_engine_message,
            on_down=self._on_engine_lost,
            python=config.engine_python,
        )
        self.scheduler = SchedulerClient(
            config.schedulers, hello, profile=self._profile, on_frame=self._on_scheduler_frame
        )
        self.poison_broadcast = PoisonBroadcast(
            config.schedulers, hello, lambda: self.runs.quarantine.poison_reports(time.time())
        )
        self._telemetry = RunTelemetry(self.state.figures)
        self._peers: dict[int, EdgePeer] = {}
        self._last_stream_id = 0  # opened since the start
        self._is_accepting = False
        self._is_drained = False
        self._engine_messages = 0  # messages of engines
        self._engine_stall_timeout_s = config.engine_stall_timeout
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_at: float | None = None
        self._changed = asyncio.Event()
        self._effect_handlers: dict[type, Callable[..., object]] = {
            AddSequence: self._add_sequence,
            CancelSequence: self._cancel_sequence,
            StepTokens: lambda effect: self._send(effect.stream, step_frame(effect)),
            RunEnded: self._on_run_ended,
            LeaseStarted: lambda effect: self.scheduler.send_started(effect.lease_id),
            LeasesReleased: self.scheduler.send_released,
        }

    def card(self) -> pb.ModelCard:
        """Raises Unavailable / LOADING before there is one."""
        if self.state.card is None:
            raise errors.loading()
        return self.state.card

    def figures(self) -> Mapping[str, float]:
        book = self.runs
        return {
            **self.state.figures(),
            "leases_expected": len(book.leases.expected),
            "leases_running": len(book.leases.running),
            "parked": len(book.parked),
            "edge_streams": len(self._peers),
            "engine_steps": book.counters.engine_steps,
            "tokens_generated": book.counters.tokens_generated,
            "tokens_wasted_after_cancel": book.counters.tokens_wasted_after_cancel,
            "cancels": book.counters.cancels,
            "restarts": self.engine.restarts,
            "attached": self.scheduler.is_connected,
        }

    # What edges do.

    def check_accepts_streams(self) -> None:
        """Raises Unavailable / DRAINING once all streams are handed back: an edge that connects anew would stay on."""
        if self._is_drained:
            raise errors.draining()

    def open_stream(self, peer: EdgePeer) -> int:
        self._last_stream_id += 1
        self._peers[self._last_stream_id] = peer
        self.runs.open_stream(self._last_stream_id)
        return self._last_stream_id

    def on_edge_frame(self, stream: int, frame: pb.ExecuteRequest) -> None:
        now = time.time()
        if frame.HasField("start"):
            run = run_from(frame.start, stream=stream, seq_id=self.runs.new_seq_id(), now=now)
            self._perform(self.runs.start(run, now))
        elif frame.HasField("cancel"):
            self._perform(self.runs.cancel(stream, frame.cancel.handle, now))

    def close_stream(self, stream: int) -> None:
        del self._peers[stream]
        self._perform(self.runs.close_stream(stream, time.time()))

    # What the scheduler does.

    def _on_scheduler_frame(self, frame: scheduler_pb2.AttachResponse) -> None:
        now = time.time()
        if frame.HasField("expect"):
            lease = frame.expect.lease
            lapses_at = now + lease.ttl.ToTimedelta().total_seconds()
            self._perform(self.runs.expect(lease.lease_id, grant_from(lease), lease.worker_id, lapses_at, now))
        elif frame.HasField("revoke"):
            self._perform(self.runs.revoke(frame.revoke.lease_id, now))
        elif frame.HasField("drain"):
            asked = frame.drain.HasField("grace")
            request_stop("scheduler drains us", frame.drain.grace.ToTimedelta().total_seconds() if asked else None)

    def _profile(self) -> scheduler_pb2.Profile:
        blames = self.runs.quarantine.poison_reports(time.time())
        if not self._is_accepting:
            return unavailable_profile(blames)
        assert self.state.card, "attached before the engine was ready"
        assert self.state.capacity
        self.prefix_cache.on_stream_opened()
        return profile_message(self.state.card, self.state.capacity, self.runs.running.values(), blames)

    # What the engine does.

    def _on_engine_message(self, message: object) -> None:
        self._engine_messages += 1
        match message:
            case StepCompleted():
                self._on_step(message)
            case EngineReady(card=card, capacity=capacity):
                self._on_engine_ready(card, capacity)
            case AddRejected(seq_id=seq_id):
                why = InvalidArgument(message.message, reason=message.reason, metadata=message.metadata)
                self._perform(self.runs.on_engine_rejected(seq_id, why, time.time()))
            case EngineFatal(message=text):
                log.error("engine_fatal", message=text)

    def _on_step(self, step: StepCompleted) -> None:
        self.state.on_step(step.result, step.capacity, step.duration_s)
        self._perform(self.runs.on_step(step.result, step.ended_at - step.duration_s, step.ended_at))
        if not self._is_accepting:
            self._start_accepting()
        self.scheduler.report_load(self.state.load)
        self.prefix_cache.apply(step.result.cache_changes)
        if self.scheduler.is_connected:  # what is told to nobody would never be told
            self._send_updates(time.time())

    def _send_updates(self, now: float) -> None:
        if served := self.runs.take_progress(now):
            self.scheduler.send_progress(served)
        # Once nothing runs there may be no step for long, in which to tell the rest.
        if change := self.prefix_cache.pop_delta(now, at_once=not self.runs.running):
            self.scheduler.send_prefix_cache_delta(change)

    def _on_engine_ready(self, card: ModelCard, capacity: Capacity) -> None:
        self.state.on_ready(card, capacity)
        self.engine.on_ready()
        self.runs.quarantine.max_wait_s = RESTART_MARGIN_S + 2 * self.engine.load_s
        self._telemetry.model = card.name
        effects = self.runs.on_engine_ready(self.state.limits)
        log.info("engine_ready", model=card.name, pid=self.engine.pid, kv_blocks=capacity.blocks, slots=capacity.slots)
        self._perform(effects)
        self._start_accepting()

    def _start_accepting(self) -> None:
        """Take work, unless runs are on probation yet; `_step` asks again."""
        self._is_accepting = self.runs.not_ready_error is None
        if not self._is_accepting:
            return
        self.on_ready(True)
        self.scheduler.report_load(self.state.load)
        if not self.runs.is_draining:
            self.scheduler.attach()

    def _on_engine_lost(self, crashed: bool) -> None:
        self.state.on_lost()
        self.prefix_cache.clear()
        self._is_accepting = False
        self.on_ready(False)
        self._perform(self.runs.on_engine_lost(errors.engine_died(), time.time(), crashed=crashed))
        if held := len(self.runs.quarantine.isolation.pending):
            log.warning("runs_quarantined", runs=held)
        blames = self.runs.quarantine.poison_reports(time.time())
        if blames:
            self.scheduler.send_poison_reports(blames)
            self.poison_broadcast.send_changes()
        self.scheduler.detach("the engine died")
        if blames and not self.runs.is_draining:
            self.scheduler.attach()  # as one that takes nothing

    # What time does.

    async def watch_engine(self) -> None:
        """Kill an engine that has work and takes no step: nothing else would ever end its runs."""
        while True:
            await self._wait_until(lambda: bool(self.runs.running))
            heard = self._engine_messages
            for _ in range(STALL_TICKS):
                await asyncio.sleep(self._engine_stall_timeout_s / STALL_TICKS)
            if self.runs.running and heard == self._engine_messages:
                log.error("engine_hung", silent_s=self._engine_stall_timeout_s)
                self.engine.kill()

    def _expire(self) -> None:
        self._timer_due_at = None
        self._perform(self.runs.expire(time.time()))

    def _rearm_timer(self) -> None:
        """Be woken at the book's next expiry, and not for one that no longer is."""
        due = self.runs.next_expiry
        if due == self._timer_due_at:
            return
        if self._timer:
            self._timer.cancel()
        self._timer_due_at = due
        if due is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due - time.time()), self._expire)

    # What the book says.

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self._effect_handlers[type(effect)](effect)
        if self.poison_broadcast.is_active:
            self.poison_broadcast.send_changes()
        self._rearm_timer()
        self._changed.set()

    def _send(self, stream: int, frame: pb.ExecuteResponse) -> None:
        peer = self._peers.get(stream)
        if peer:
            peer.send(frame)  # an edge that does not read loses its stream, and with it its runs: `close` follows

    def _add_sequence(self, effect: AddSequence) -> None:
        self.engine.send(Add(effect.spec))  # where there is no engine any more, `_lose_engine` is about to come

    def _cancel_sequence(self, effect: CancelSequence) -> None:
        self.engine.send(Cancel(effect.seq_id))
        # The loop writes to the pipe at the end of this turn, which a crowd of cancels can make a long one.
        asyncio.get_running_loop().call_soon(lambda: self.runs.on_cancel_sent(effect.seq_id, time.time()))

    def _on_run_ended(self, effect: RunEnded) -> None:
        if effect.is_reported:
            self._send(effect.run.stream, ended_frame(effect))
        if not effect.run.is_orphan:
            self._telemetry.record(effect)

    # The end.

    async def drain(self, grace: float, forced: asyncio.Event) -> None:
        """Let what was granted run to its end, for `grace` seconds or until `hurried`; then hand the rest back."""
        self.on_ready(False)
        self.scheduler.detach("drains")
        self._perform(self.runs.drain(time.time()))
        with suppress(TimeoutError):
            async with asyncio.timeout(grace) as limit, background(_end_grace_when_forced(limit, forced)):
                await self._wait_until(lambda: self.runs.is_idle)
        log.info("handing_back", runs=len(self.runs.running))
        self._is_drained = True
        for peer in self._peers.values():
            peer.send(pb.ExecuteResponse(end=End(reason="drained")))
        with suppress(TimeoutError):
            async with asyncio.timeout(HAND_BACK_TIMEOUT_S):
                await self._wait_until(lambda: not self._peers)

    async def _wait_until(self, predicate: Callable[[], bool]) -> None:
        while not predicate():
            self._changed.clear()
            await self._changed.wait()


async def _end_grace_when_forced(grace: asyncio.Timeout, forced: asyncio.Event) -> None:
    await forced.wait()
    grace.reschedule(0)
