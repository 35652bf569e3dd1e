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
from penstock.chassis.streams import Peer
from penstock.mesh.v1 import scheduler_pb2
from penstock.mesh.v1 import worker_pb2 as pb
from penstock.v1.stream_pb2 import End, Hello
from penstock.worker import refusals
from penstock.worker.accounts import RunAccounts
from penstock.worker.attachment import Attachment
from penstock.worker.cache_news import CacheNews
from penstock.worker.config import WorkerConfig
from penstock.worker.effects import AddSequence, CancelSequence, Effect, Ended, LeasesReleased, LeaseStarted, Tokens
from penstock.worker.engine.card import ModelCard
from penstock.worker.engine.interface import Capacity
from penstock.worker.engine.messages import Add, Cancel, Fatal, Ready, Refused, Stepped
from penstock.worker.engine_link import EngineLink
from penstock.worker.engine_state import EngineState
from penstock.worker.frames import apart_message, ended_frame, grant_from, profile_message, run_from, step_frame
from penstock.worker.leases import LeaseBook
from penstock.worker.outcry import Outcry
from penstock.worker.runs import RunBook

log = structlog.get_logger()

EdgePeer = Peer[pb.ExecuteResponse, pb.ExecuteRequest]

HOLD_FOR = 45.0  # s; beside loading twice: how long runs on probation wait for an engine, above its longest backoff
STALL_TICKS = 8  # in which an engine has to be silent: who stood still itself has counted one of them
HAND_BACK_TIMEOUT = 1.0  # s; for edges to leave after our `end`


class Front:
    """The object that the worker's parts meet in. `hello` may get its address later, once that is bound."""

    def __init__(self, config: WorkerConfig, hello: Hello) -> None:
        self.hello = hello
        self.on_ready: Callable[[bool], None] = lambda _: None  # hears when the engine can take runs, and when no more
        self.book = RunBook(leases=LeaseBook(hello.instance_id), park_for=config.park_for)
        self.state = EngineState()
        self.cache = CacheNews()
        self.engine = EngineLink(
            config.engine_options(),
            on_message=self._hear_engine,
            on_down=self._lose_engine,
            python=config.engine_python,
        )
        self.attachment = Attachment(config.schedulers, hello, profile=self._profile, on_frame=self._hear_scheduler)
        self.outcry = Outcry(config.schedulers, hello, lambda: self.book.trials.blamed(time.time()))
        self._accounts = RunAccounts(self.state.figures)
        self._peers: dict[int, EdgePeer] = {}
        self._streams = 0  # opened since the start
        self._is_open = False
        self._is_over = False
        self._heard = 0  # messages of engines
        self._stall_after = config.stall_after
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for: float | None = None
        self._changed = asyncio.Event()
        self._acts: dict[type, Callable[..., object]] = {
            AddSequence: self._add,
            CancelSequence: self._cancel,
            Tokens: lambda effect: self._send(effect.stream, step_frame(effect)),
            Ended: self._end,
            LeaseStarted: lambda effect: self.attachment.started(effect.lease_id),
            LeasesReleased: self.attachment.released,
        }

    def card(self) -> pb.ModelCard:
        """Raises Unavailable / LOADING before there is one."""
        if self.state.card is None:
            raise refusals.loading()
        return self.state.card

    def figures(self) -> Mapping[str, float]:
        book = self.book
        return {
            **self.state.figures(),
            "leases_expected": len(book.leases.expected),
            "leases_running": len(book.leases.running),
            "parked": len(book.parked),
            "edge_streams": len(self._peers),
            "engine_steps": book.counts.engine_steps,
            "tokens_generated": book.counts.tokens_generated,
            "tokens_wasted_after_cancel": book.counts.tokens_wasted_after_cancel,
            "cancels": book.counts.cancels,
            "restarts": self.engine.restarts,
            "attached": self.attachment.is_up,
        }

    # What edges do.

    def check_open(self) -> None:
        """Raises Unavailable / DRAINING once all streams are handed back: an edge that connects anew would stay on."""
        if self._is_over:
            raise refusals.draining()

    def open(self, peer: EdgePeer) -> int:
        self._streams += 1
        self._peers[self._streams] = peer
        self.book.open_stream(self._streams)
        return self._streams

    def hear_edge(self, stream: int, frame: pb.ExecuteRequest) -> None:
        now = time.time()
        if frame.HasField("start"):
            run = run_from(frame.start, stream=stream, seq_id=self.book.new_seq_id(), now=now)
            self._perform(self.book.start(run, now))
        elif frame.HasField("cancel"):
            self._perform(self.book.cancel(stream, frame.cancel.handle, now))

    def close(self, stream: int) -> None:
        del self._peers[stream]
        self._perform(self.book.close_stream(stream, time.time()))

    # What the scheduler does.

    def _hear_scheduler(self, frame: scheduler_pb2.AttachResponse) -> None:
        now = time.time()
        if frame.HasField("expect"):
            lease = frame.expect.lease
            lapses_at = now + lease.ttl.ToTimedelta().total_seconds()
            self._perform(self.book.expect(lease.lease_id, grant_from(lease), lease.worker_id, lapses_at, now))
        elif frame.HasField("revoke"):
            self._perform(self.book.revoke(frame.revoke.lease_id, now))
        elif frame.HasField("drain"):
            asked = frame.drain.HasField("grace")
            request_stop("scheduler drains us", frame.drain.grace.ToTimedelta().total_seconds() if asked else None)

    def _profile(self) -> scheduler_pb2.Profile:
        blames = self.book.trials.blamed(time.time())
        if not self._is_open:
            return apart_message(blames)
        assert self.state.card, "attached before the engine was ready"
        assert self.state.capacity
        self.cache.begin()
        return profile_message(self.state.card, self.state.capacity, self.book.running.values(), blames)

    # What the engine does.

    def _hear_engine(self, message: object) -> None:
        self._heard += 1
        match message:
            case Stepped():
                self._step(message)
            case Ready(card=card, capacity=capacity):
                self._load(card, capacity)
            case Refused(seq_id=seq_id):
                why = InvalidArgument(message.message, reason=message.reason, metadata=message.metadata)
                self._perform(self.book.engine_refused(seq_id, why, time.time()))
            case Fatal(message=text):
                log.error("engine_fatal", message=text)

    def _step(self, step: Stepped) -> None:
        self.state.note_step(step.result, step.capacity, step.took_s)
        self._perform(self.book.stepped(step.result, step.ended_at - step.took_s, step.ended_at))
        if not self._is_open:
            self._open()
        self.attachment.report(self.state.load)
        self.cache.note(step.result.cache_news)
        if self.attachment.is_up:  # what is told to nobody would never be told
            self._tell_news(time.time())

    def _tell_news(self, now: float) -> None:
        if served := self.book.progress(now):
            self.attachment.progress(served)
        # Once nothing runs there may be no step for long, in which to tell the rest.
        if change := self.cache.take(now, at_once=not self.book.running):
            self.attachment.cache_changed(change)

    def _load(self, card: ModelCard, capacity: Capacity) -> None:
        self.state.note_ready(card, capacity)
        self.engine.note_ready()
        self.book.trials.hold_for = HOLD_FOR + 2 * self.engine.load_s
        self._accounts.model = card.name
        effects = self.book.engine_ready(self.state.limits)
        log.info("engine_ready", model=card.name, pid=self.engine.pid, kv_blocks=capacity.blocks, slots=capacity.slots)
        self._perform(effects)
        self._open()

    def _open(self) -> None:
        """Take work, unless runs are on probation yet; `_step` asks again."""
        self._is_open = self.book.closed is None
        if not self._is_open:
            return
        self.on_ready(True)
        self.attachment.report(self.state.load)
        if not self.book.is_draining:
            self.attachment.attach()

    def _lose_engine(self, crashed: bool) -> None:
        self.state.note_lost()
        self.cache.clear()
        self._is_open = False
        self.on_ready(False)
        self._perform(self.book.engine_lost(refusals.engine_died(), time.time(), crashed=crashed))
        if held := len(self.book.trials.probation.held):
            log.warning("runs_on_probation", runs=held)
        blames = self.book.trials.blamed(time.time())
        if blames:
            self.attachment.blamed(blames)
            self.outcry.tell()
        self.attachment.detach("the engine died")
        if blames and not self.book.is_draining:
            self.attachment.attach()  # as one that takes nothing

    # What time does.

    async def watch_engine(self) -> None:
        """Kill an engine that has work and takes no step: nothing else would ever end its runs."""
        while True:
            await self._until(lambda: bool(self.book.running))
            heard = self._heard
            for _ in range(STALL_TICKS):
                await asyncio.sleep(self._stall_after / STALL_TICKS)
            if self.book.running and heard == self._heard:
                log.error("engine_hangs", silent_s=self._stall_after)
                self.engine.kill()

    def _expire(self) -> None:
        self._armed_for = None
        self._perform(self.book.expire(time.time()))

    def _rearm(self) -> None:
        """Be woken at the book's next expiry, and not for one that no longer is."""
        due = self.book.next_expiry
        if due == self._armed_for:
            return
        if self._timer:
            self._timer.cancel()
        self._armed_for = due
        if due is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due - time.time()), self._expire)

    # What the book says.

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self._acts[type(effect)](effect)
        if self.outcry.is_on:
            self.outcry.tell()
        self._rearm()
        self._changed.set()

    def _send(self, stream: int, frame: pb.ExecuteResponse) -> None:
        peer = self._peers.get(stream)
        if peer:
            peer.send(frame)  # an edge that does not read loses its stream, and with it its runs: `close` follows

    def _add(self, effect: AddSequence) -> None:
        self.engine.send(Add(effect.spec))  # where there is no engine any more, `_lose_engine` is about to come

    def _cancel(self, effect: CancelSequence) -> None:
        self.engine.send(Cancel(effect.seq_id))
        # The loop writes to the pipe at the end of this turn, which a crowd of cancels can make a long one.
        asyncio.get_running_loop().call_soon(lambda: self.book.told(effect.seq_id, time.time()))

    def _end(self, effect: Ended) -> None:
        if effect.answers:
            self._send(effect.run.stream, ended_frame(effect))
        if not effect.run.is_ghost:
            self._accounts.note(effect)

    # The end.

    async def drain(self, grace: float, hurried: asyncio.Event) -> None:
        """Let what was granted run to its end, for `grace` seconds or until `hurried`; then hand the rest back."""
        self.on_ready(False)
        self.attachment.detach("drains")
        self._perform(self.book.drain(time.time()))
        with suppress(TimeoutError):
            async with asyncio.timeout(grace) as limit, background(_cut_short(limit, hurried)):
                await self._until(lambda: self.book.is_idle)
        log.info("handing_back", runs=len(self.book.running))
        self._is_over = True
        for peer in self._peers.values():
            peer.send(pb.ExecuteResponse(end=End(reason="drained")))
        with suppress(TimeoutError):
            async with asyncio.timeout(HAND_BACK_TIMEOUT):
                await self._until(lambda: not self._peers)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._changed.clear()
            await self._changed.wait()


async def _cut_short(limit: asyncio.Timeout, hurried: asyncio.Event) -> None:
    await hurried.wait()
    limit.reschedule(0)
