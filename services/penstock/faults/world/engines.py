"""Engines of such a mesh: the real batch over a step-time law, as a process of its own behind a pipe."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.chassis.errors import PenstockError
from penstock.faults.checks import oracle
from penstock.faults.grpc.network import Network, call_on
from penstock.faults.world.event_loop import ProcessLoop
from penstock.faults.world.process import Process
from penstock.worker.engine.build_batch import build_batch
from penstock.worker.engine.interface import StepResult
from penstock.worker.engine.messages import Add, AddRejected, Cancel, EngineReady, StepCompleted
from penstock.worker.engine.options import EngineOptions
from penstock.worker.engine.sim import SimulatedEngine

LOAD = 0.05  # s until an engine is ready
PIPE = 0.00005  # s
KILLED = -9


@dataclass(eq=False)
class Inlet:
    """What an engine has been told and not yet taken."""

    messages: deque[object] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, message: object) -> None:
        self.messages.append(message)
        self.arrived.set()


class FrontEnd:
    """The worker's end of the pipe, and of the process behind it: stands for EnginePipe and EngineProcess."""

    def __init__(self, network: Network, front: ProcessLoop, on_message: Callable[[object], None], pid: int) -> None:
        self.pid = pid
        self.lost: asyncio.Future[None] = front.create_future()
        self.exited = self.lost
        self._network = network
        self._front = front
        self._on_message = on_message
        self._engine: Process | None = None
        self._inlet: Inlet | None = None
        self._has_crashed = False

    @property
    def has_crashed(self) -> bool:
        """Whether the engine died of itself, not by a signal."""
        return self._has_crashed

    def attach(self, engine: Process) -> None:
        self._engine = engine

    def send(self, message: object) -> None:
        self._carry(lambda: self._engine.loop if self._engine else None, self._put, message)

    def hear(self, message: object) -> None:
        """Called by the engine."""
        self._carry(lambda: self._front, self._tell, message)

    def begin(self, inlet: Inlet) -> None:
        self._inlet = inlet

    def died(self, *, of_itself: bool) -> None:
        self._has_crashed = of_itself
        self._carry(lambda: self._front, self._note_death)

    def kill(self) -> None:
        if self._engine:
            self._engine.kill()

    def close(self) -> None:
        self.kill()

    async def end(self, _: float) -> int:
        self.kill()
        await self.exited
        return KILLED

    def _carry(self, whose: Callable[[], ProcessLoop | None], act: Callable[..., None], *args: object) -> None:
        def arrive() -> None:
            if loop := whose():
                call_on(loop, act, *args)

        self._network.world.at(self._network.world.now + PIPE, arrive)

    def _put(self, message: object) -> None:
        if self._inlet:
            self._inlet.put(message)

    def _tell(self, message: object) -> None:
        if not self.lost.done():
            self._on_message(message)

    def _note_death(self) -> None:
        if not self.lost.done():
            self.lost.set_result(None)


class EngineProcess(Process):
    """One engine. Tells its front when it dies, however it does."""

    front: FrontEnd | None = None

    def kill(self) -> None:
        self._end(of_itself=False)

    def crash(self) -> None:
        """Die of itself, as by a fault in a kernel."""
        self._end(of_itself=True)

    def _end(self, *, of_itself: bool) -> None:
        was_up = self.is_up
        super().kill()
        if was_up and self.front:
            self.front.died(of_itself=of_itself)


@dataclass
class EngineStand:
    """Where workers find their engines: `made` counts tokens by the length of the prompt they were made for."""

    network: Network
    engines: dict[str, EngineProcess] = field(default_factory=dict)  # by worker
    made: dict[int, int] = field(default_factory=dict)
    made_at: dict[int, float] = field(default_factory=dict)  # s; the last of them
    poison: Mapping[int, int] = field(default_factory=dict)  # tokens that crash engines, by the length of their prompts
    poisoned: dict[int, list[str]] = field(default_factory=dict)  # workers whose engines crashed, by such lengths
    pids: int = 0

    def start(self, options: EngineOptions, on_message: Callable[[object], None]) -> FrontEnd:
        """Start the engine of the worker whose turn it is."""
        front = asyncio.get_running_loop()
        assert isinstance(front, ProcessLoop)
        self.pids += 1
        end = FrontEnd(self.network, front, on_message, self.pids)
        engine = self.engines[front.name]
        engine.front = end
        engine.main = lambda _: self._run(options, end, engine, front.name)
        end.attach(engine)
        engine.start()
        return end

    async def _run(self, options: EngineOptions, front: FrontEnd, process: EngineProcess, worker: str) -> None:
        """As the engine's own process: hear, step, tell."""
        inlet = Inlet()
        front.begin(inlet)
        card = oracle.card()
        engine = SimulatedEngine(
            build_batch(options, card, options.kv_blocks), options.step_time, range(oracle.VOCABULARY)
        )
        await asyncio.sleep(LOAD)
        front.hear(EngineReady(card, engine.capacity()))
        lengths: dict[int, int] = {}
        while True:
            self._take(inlet, engine, front, lengths)
            while not engine.has_work:
                inlet.arrived.clear()
                await inlet.arrived.wait()
                self._take(inlet, engine, front, lengths)
            result = engine.step()
            if crashers := self._crashers(result, lengths):
                self.poisoned.setdefault(crashers[0], []).append(worker)
                process.crash()
                await asyncio.Event().wait()  # nothing of it runs any more
            for seq_id in result.seq_ids:
                self.made[lengths[seq_id]] = self.made.get(lengths[seq_id], 0) + 1
                self.made_at[lengths[seq_id]] = self.network.world.now
            await asyncio.sleep(result.duration_s)
            front.hear(StepCompleted(result, engine.capacity(), result.duration_s, time.time()))

    def _crashers(self, result: StepResult, lengths: Mapping[int, int]) -> list[int]:
        """Lengths of the prompts of which this step could compute no more and live."""
        if not self.poison:
            return []
        begun = [(lengths[seq_id], 0) for seq_id, _ in result.prefilled]
        # A prompt of which all but the last token is another's too counts as decoded.
        made = [(lengths[seq_id], index) for seq_id, index in zip(result.seq_ids, result.indexes, strict=True)]
        return [length for length, index in (*begun, *made) if index >= self.poison.get(length, math.inf)]

    def _take(self, inlet: Inlet, engine: SimulatedEngine, front: FrontEnd, lengths: dict[int, int]) -> None:
        while inlet.messages:
            match inlet.messages.popleft():
                case Add(spec):
                    lengths[spec.seq_id] = len(spec.token_ids) - spec.emitted
                    try:
                        engine.add(spec)
                    except PenstockError as error:
                        front.hear(AddRejected(spec.seq_id, error.reason, error.message, error.metadata))
                case Cancel(seq_id):
                    engine.cancel(seq_id)
