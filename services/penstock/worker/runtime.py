"""The worker's runtime: passes events of edges, the scheduler and the engine to the run table and performs its effects.

It owns no policy. Each event is one call of the run table, and each effect is performed at once on the event loop.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import structlog

from penstock.chassis.clocks import WallMonotonicClock
from penstock.chassis.durations import seconds_of
from penstock.chassis.errors import InvalidArgument
from penstock.chassis.lifecycle import background, request_stop
from penstock.chassis.observability.metrics import Observation
from penstock.chassis.security.channels import PLAINTEXT, Dialer
from penstock.mesh.model_key import model_name
from penstock.mesh.v1 import scheduler_pb2
from penstock.mesh.v1 import worker_pb2 as pb
from penstock.v1.stream_pb2 import End, Hello
from penstock.worker.config import WorkerConfig
from penstock.worker.effect_dispatcher import EdgePeer, EffectDispatcher
from penstock.worker.engine.host.messages import AddRejected, EngineFatal, EngineReady, StepCompleted
from penstock.worker.engine.interface import Capacity
from penstock.worker.engine.model_card import ModelCard
from penstock.worker.engine_host.state import EngineState
from penstock.worker.engine_host.supervisor import EngineSupervisor
from penstock.worker.frames import grant_from, profile_message, run_from, unavailable_profile
from penstock.worker.metrics import observations
from penstock.worker.quarantine.broadcast import PoisonBroadcast
from penstock.worker.runs import errors
from penstock.worker.runs.leases import LeaseTable
from penstock.worker.runs.table import RunTable
from penstock.worker.scheduler_session.client import SchedulerClient
from penstock.worker.scheduler_session.prefix_cache_delta import PrefixCacheTracker
from penstock.worker.scheduler_session.progress import ProgressReporter
from penstock.worker.telemetry import RunTelemetry

log = structlog.get_logger()

# s added to twice the load time: how long runs in quarantine wait for an engine; above the longest restart backoff
RESTART_MARGIN_S = 45.0
STALL_TICKS = 8  # parts of the stall timeout; if this process itself was suspended, at most one of them has passed
HAND_BACK_TIMEOUT_S = 1.0  # s for edges to close their streams after our `end`


class WorkerRuntime:
    """Connects the worker's parts. The caller may set the address of `hello` later, once it is bound."""

    def __init__(self, config: WorkerConfig, hello: Hello, *, dialer: Dialer = PLAINTEXT) -> None:
        self._clock = WallMonotonicClock()
        self.hello = hello
        self.on_ready: Callable[[bool], None] = lambda _: None  # called as the engine becomes ready and unready
        self.runs = RunTable(leases=LeaseTable(hello.instance_id), lease_announce_timeout=config.lease_announce_timeout)
        self.state = EngineState(config.served_name)
        self.prefix_cache = PrefixCacheTracker()
        self._progress = ProgressReporter()
        self.engine = EngineSupervisor(
            config.engine_options(),
            on_message=self._on_engine_message,
            on_down=self._on_engine_lost,
            python=config.engine_python,
        )
        self.scheduler = SchedulerClient(
            config.schedulers, hello, profile=self._profile, on_frame=self._on_scheduler_frame, dialer=dialer
        )
        self.poison_broadcast = PoisonBroadcast(
            config.schedulers,
            hello,
            lambda: self.runs.quarantine.poison_reports(self._clock.now()),
            dialer=dialer,
        )
        self._telemetry = RunTelemetry()
        self._peers: dict[int, EdgePeer] = {}
        self._last_stream_id = 0
        self._is_accepting = False
        self._is_drained = False
        self._engine_messages = 0  # received since the start
        self._engine_stall_timeout_s = config.engine_stall_timeout
        self._effects = EffectDispatcher(
            self.runs,
            self._peers,
            now=self._clock.now,
            engine=self.engine,
            state=self.state,
            scheduler=self.scheduler,
            poison_broadcast=self.poison_broadcast,
            telemetry=self._telemetry,
        )

    def card(self) -> pb.ModelCard:
        """Raise Unavailable / LOADING before the first engine is ready."""
        if self.state.card is None:
            raise errors.loading()
        return self.state.card

    def figures(self) -> Mapping[str, float]:
        runs = self.runs
        return {
            **self.state.figures(),
            "leases_expected": len(runs.leases.expected),
            "leases_running": len(runs.leases.running),
            "runs_parked": len(runs.parked),
            "edge_streams": len(self._peers),
            "engine_steps": runs.counters.engine_steps,
            "tokens_prefilled": runs.counters.tokens_prefilled,
            "tokens_generated": runs.counters.tokens_generated,
            "tokens_wasted_after_cancel": runs.counters.tokens_wasted_after_cancel,
            "cancels": runs.counters.cancels,
            "restarts": self.engine.restarts,
            "attached": self.scheduler.is_connected,
        }

    def observations(self) -> Iterator[Observation]:
        return observations(self.runs, self.state, self.engine, is_attached=self.scheduler.is_connected)

    # Events of edges.

    def check_accepts_streams(self) -> None:
        """Raise Unavailable / DRAINING once all streams are handed back, as an edge that reconnected would stay."""
        if self._is_drained:
            raise errors.draining()

    def open_stream(self, peer: EdgePeer) -> int:
        self._last_stream_id += 1
        self._peers[self._last_stream_id] = peer
        self.runs.streams.open(self._last_stream_id)
        return self._last_stream_id

    def on_edge_frame(self, stream: int, frame: pb.ExecuteRequest) -> None:
        now = self._clock.now()
        if frame.HasField("start"):
            run = run_from(frame.start, stream=stream, seq_id=self.runs.new_seq_id(), now=now)
            self._effects.perform(self.runs.start(run, now))
        elif frame.HasField("cancel"):
            self._effects.perform(self.runs.cancel(stream, frame.cancel.handle, now))

    def close_stream(self, stream: int) -> None:
        del self._peers[stream]
        self._effects.perform(self.runs.close_stream(stream, self._clock.now()))

    # Events of the scheduler.

    def _on_scheduler_frame(self, frame: scheduler_pb2.AttachResponse) -> None:
        now = self._clock.now()
        if frame.HasField("expect"):
            lease = frame.expect.lease
            lapses_at = now + seconds_of(lease.ttl)
            self._effects.perform(self.runs.expect(lease.lease_id, grant_from(lease), lease.worker_id, lapses_at, now))
        elif frame.HasField("revoke"):
            self._effects.perform(self.runs.revoke(frame.revoke.lease_id, now))
        elif frame.HasField("drain"):
            grace = seconds_of(frame.drain.grace) if frame.drain.HasField("grace") else None
            request_stop("the scheduler drains this worker", grace)

    def _profile(self) -> scheduler_pb2.Profile:
        reports = self.runs.quarantine.poison_reports(self._clock.now())
        if not self._is_accepting:
            return unavailable_profile(reports)
        assert self.state.card, "attached before the engine was ready"
        assert self.state.capacity
        self.prefix_cache.on_stream_opened()
        self._progress.on_stream_opened()
        return profile_message(self.state.card, self.state.capacity, self.runs.running.values(), reports)

    # Events of the engine.

    def _on_engine_message(self, message: object) -> None:
        self._engine_messages += 1
        match message:
            case StepCompleted():
                self._on_step(message)
            case EngineReady(card=card, capacity=capacity):
                self._on_engine_ready(card, capacity)
            case AddRejected(seq_id=seq_id):
                self.state.on_add_rejected(seq_id)
                error = InvalidArgument(message.message, reason=message.reason, metadata=message.metadata)
                self._effects.perform(self.runs.on_engine_rejected(seq_id, error, self._clock.now()))
            case EngineFatal(message=text):
                log.error("engine_fatal", message=text)

    def _on_step(self, step: StepCompleted) -> None:
        ended_at = self._clock.at(step.ended_at)
        self.state.on_step(step.result, step.capacity, step.duration_s, ended_at)
        self._effects.perform(self.runs.on_step(step.result, ended_at - step.duration_s, ended_at))
        if not self._is_accepting:
            self._start_accepting()
        self.scheduler.report_load(self.state.load)
        self.prefix_cache.apply(step.result.cache_changes)
        if self.scheduler.is_connected:  # otherwise the updates would be marked as sent and be lost
            self._send_updates(self._clock.now())

    def _send_updates(self, now: float) -> None:
        running = (run.progress for run in self.runs.running.values() if not run.is_orphan)
        if report := self._progress.take_due(running, now):
            self.scheduler.send_progress(report, self.state.throughput.steps)
        # With no run left, the next step that could send the rest may be far away.
        if delta := self.prefix_cache.pop_delta(now, at_once=not self.runs.running):
            self.scheduler.send_prefix_cache_delta(delta)

    def _on_engine_ready(self, card: ModelCard, capacity: Capacity) -> None:
        self.state.on_ready(card, capacity)
        self.engine.on_ready()
        self.runs.quarantine.max_wait_s = RESTART_MARGIN_S + 2 * self.engine.load_s
        self._telemetry.model = model_name(self.state.model)
        effects = self.runs.on_engine_ready(self.state.limits, self._clock.now())
        facts = {"model": self.state.model, "kv_blocks": capacity.blocks, "slots": capacity.slots}
        log.info("engine_ready", pid=self.engine.pid, **facts)
        self._effects.perform(effects)
        self._start_accepting()

    def _start_accepting(self) -> None:
        """Accept work, unless runs are in quarantine; called again after each step."""
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
        self._effects.perform(self.runs.on_engine_lost(errors.engine_died(), self._clock.now(), crashed=crashed))
        if quarantined := len(self.runs.quarantine.isolation.pending):
            log.warning("runs_quarantined", runs=quarantined)
        reports = self.runs.quarantine.poison_reports(self._clock.now())
        if reports:
            self.scheduler.send_poison_reports(reports)
            self.poison_broadcast.send_changes()
        self.scheduler.detach("the engine died")
        if reports and not self.runs.is_draining:
            self.scheduler.attach()  # without capacity, to report the suspects

    # Events of the clock.

    async def watch_engine(self) -> None:
        """Kill an engine that has work and reports no step for `engine_stall_timeout`, as its runs would never end."""
        while True:
            await self._wait_until(lambda: bool(self.runs.running))
            messages_before = self._engine_messages
            for _ in range(STALL_TICKS):
                await asyncio.sleep(self._engine_stall_timeout_s / STALL_TICKS)
            if self.runs.running and messages_before == self._engine_messages:
                log.error("engine_hung", silent_s=self._engine_stall_timeout_s)
                self.engine.kill()

    # Shutdown.

    async def drain(self, grace: float, forced: asyncio.Event) -> None:
        """Let granted runs finish, for `grace` seconds or until `forced` is set; then hand the rest back to edges."""
        self.on_ready(False)
        self.scheduler.detach("drains")
        self._effects.perform(self.runs.drain(self._clock.now()))
        with suppress(TimeoutError):
            async with asyncio.timeout(grace) as timeout, background(_end_grace_when_forced(timeout, forced)):
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
            self._effects.performed.clear()
            await self._effects.performed.wait()


async def _end_grace_when_forced(timeout: asyncio.Timeout, forced: asyncio.Event) -> None:
    await forced.wait()
    timeout.reschedule(0)
