"""Simulated engines: the real batch with modelled step times, each in a process of its own behind a pipe."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.chassis.errors import PenstockError
from penstock.faults.checks import oracle
from penstock.faults.grpc.network import Network, run_on
from penstock.faults.world.event_loop import ProcessLoop
from penstock.faults.world.process import Process
from penstock.worker.engine.batching.build import build_batch
from penstock.worker.engine.host.messages import Add, AddRejected, Cancel, EngineReady, StepCompleted
from penstock.worker.engine.interface import StepResult
from penstock.worker.engine.options import EngineOptions
from penstock.worker.engine.simulated.engine import SimulatedEngine

LOAD_TIME_S = 0.05  # s from the start of an engine until it is ready
PIPE_DELAY_S = 0.00005  # s each way
KILLED_EXIT_CODE = -9


@dataclass(eq=False)
class EngineInbox:
    """Messages that an engine has received and not yet read."""

    messages: deque[object] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, message: object) -> None:
        self.messages.append(message)
        self.arrived.set()


class FakeEngineHost:
    """The worker's end of the pipe to an engine process; replaces `EnginePipe` and `EngineProcess`."""

    def __init__(
        self, network: Network, worker_loop: ProcessLoop, on_message: Callable[[object], None], pid: int
    ) -> None:
        self.pid = pid
        self.closed: asyncio.Future[None] = worker_loop.create_future()
        self.exited = self.closed
        self._network = network
        self._worker_loop = worker_loop
        self._on_message = on_message
        self._engine: Process | None = None
        self._inbox: EngineInbox | None = None
        self._has_crashed = False

    @property
    def has_crashed(self) -> bool:
        """Whether the engine crashed by itself, and was not killed by a signal."""
        return self._has_crashed

    def attach(self, engine: Process) -> None:
        self._engine = engine

    def send(self, message: object) -> None:
        self._deliver_later(lambda: self._engine.loop if self._engine else None, self._put, message)

    def receive(self, message: object) -> None:
        """Deliver a message of the engine to the worker."""
        self._deliver_later(lambda: self._worker_loop, self._deliver, message)

    def on_engine_started(self, inbox: EngineInbox) -> None:
        self._inbox = inbox

    def on_engine_died(self, *, crashed: bool) -> None:
        self._has_crashed = crashed
        self._deliver_later(lambda: self._worker_loop, self._mark_lost)

    def kill(self) -> None:
        if self._engine:
            self._engine.kill()

    def close(self) -> None:
        self.kill()

    async def stop(self, _: float) -> int:
        self.kill()
        await self.exited
        return KILLED_EXIT_CODE

    def _deliver_later(
        self, target_loop: Callable[[], ProcessLoop | None], callback: Callable[..., None], *args: object
    ) -> None:
        def deliver() -> None:
            if loop := target_loop():
                run_on(loop, callback, *args)

        self._network.world.schedule(self._network.world.now + PIPE_DELAY_S, deliver)

    def _put(self, message: object) -> None:
        if self._inbox:
            self._inbox.put(message)

    def _deliver(self, message: object) -> None:
        if not self.closed.done():
            self._on_message(message)

    def _mark_lost(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


class FakeEngineProcess(Process):
    """The process of one engine; reports its death to its host, whether it was killed or crashed."""

    host: FakeEngineHost | None = None

    def kill(self) -> None:
        self._die(crashed=False)

    def crash(self) -> None:
        """Crash, as by a fault in a kernel."""
        self._die(crashed=True)

    def _die(self, *, crashed: bool) -> None:
        was_up = self.is_up
        super().kill()
        if was_up and self.host:
            self.host.on_engine_died(crashed=crashed)


@dataclass
class EnginePool:
    """Starts the engines of all workers, and counts the tokens that they generate."""

    network: Network
    engines: dict[str, FakeEngineProcess] = field(default_factory=dict)  # by worker
    tokens_made: dict[int, int] = field(default_factory=dict)  # by prompt length
    last_token_at: dict[int, float] = field(default_factory=dict)  # s; time of the last of them, by prompt length
    # The output token whose computation crashes an engine, by prompt length.
    crash_token_indexes: Mapping[int, int] = field(default_factory=dict)
    # Workers whose engines crashed, by the length of the prompt that crashed them.
    crashed_workers: dict[int, list[str]] = field(default_factory=dict)
    last_pid: int = 0
    # Version of the model's files on the host of each worker, with 0 for workers that are not listed.
    versions: dict[str, int] = field(default_factory=dict)
    # When the last host with the files of a version lost them.
    replaced_at: list[float] = field(default_factory=list)

    def set_version(self, worker: str, version: int) -> None:
        """Replace the model's files of a worker; its next engine loads them."""
        before = self._present_versions
        self.versions[worker] = version
        if before - self._present_versions:
            self.replaced_at.append(self.network.world.now)

    @property
    def _present_versions(self) -> set[int]:
        return {self.versions.get(worker, 0) for worker in self.engines}

    def start(self, options: EngineOptions, on_message: Callable[[object], None]) -> FakeEngineHost:
        """Start the engine of the worker that is running."""
        worker_loop = asyncio.get_running_loop()
        assert isinstance(worker_loop, ProcessLoop)
        self.last_pid += 1
        host = FakeEngineHost(self.network, worker_loop, on_message, self.last_pid)
        engine = self.engines[worker_loop.name]
        engine.host = host
        engine.main = lambda _: self._run_engine(options, host, engine, worker_loop.name)
        host.attach(engine)
        engine.start()
        return host

    async def _run_engine(
        self, options: EngineOptions, host: FakeEngineHost, process: FakeEngineProcess, worker: str
    ) -> None:
        """Run the engine's process: read messages, compute a step, send its result."""
        inbox = EngineInbox()
        host.on_engine_started(inbox)
        version = self.versions.get(worker, 0)
        card = oracle.model_card(version)
        engine = SimulatedEngine(
            build_batch(options, card, options.kv_blocks),
            options.step_time,
            range(oracle.VOCABULARY_SIZE),
            salt=oracle.salt_of(version),
        )
        await asyncio.sleep(LOAD_TIME_S)
        host.receive(EngineReady(card, engine.capacity()))
        lengths: dict[int, int] = {}
        while True:
            self._read_messages(inbox, engine, host, lengths)
            while not engine.has_work:
                inbox.arrived.clear()
                await inbox.arrived.wait()
                self._read_messages(inbox, engine, host, lengths)
            result = engine.step()
            if crashing_prompts := self._crashing_prompts(result, lengths):
                self.crashed_workers.setdefault(crashing_prompts[0], []).append(worker)
                process.crash()
                await asyncio.Event().wait()  # the loop of this process has been halted
            for seq_id in result.seq_ids:
                self.tokens_made[lengths[seq_id]] = self.tokens_made.get(lengths[seq_id], 0) + 1
                self.last_token_at[lengths[seq_id]] = self.network.world.now
            await asyncio.sleep(result.duration_s)
            host.receive(StepCompleted(result, engine.capacity(), result.duration_s, time.monotonic()))

    def _crashing_prompts(self, result: StepResult, lengths: Mapping[int, int]) -> list[int]:
        """Return the lengths of the prompts whose computation in this step crashes the engine."""
        if not self.crash_token_indexes:
            return []
        prefilled = [(lengths[seq_id], 0) for seq_id, _ in result.prefilled]
        # A prompt whose tokens are all cached except the last counts as decoded.
        decoded = [(lengths[seq_id], index) for seq_id, index in zip(result.seq_ids, result.indexes, strict=True)]
        return [
            length
            for length, index in (*prefilled, *decoded)
            if index >= self.crash_token_indexes.get(length, math.inf)
        ]

    def _read_messages(
        self, inbox: EngineInbox, engine: SimulatedEngine, host: FakeEngineHost, lengths: dict[int, int]
    ) -> None:
        while inbox.messages:
            match inbox.messages.popleft():
                case Add(spec):
                    lengths[spec.seq_id] = len(spec.token_ids) - spec.emitted
                    try:
                        engine.add(spec)
                    except PenstockError as error:
                        host.receive(AddRejected(spec.seq_id, error.reason, error.message, error.metadata))
                case Cancel(seq_id):
                    engine.cancel(seq_id)
