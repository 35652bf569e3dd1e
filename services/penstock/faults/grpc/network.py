"""The network between processes: messages of one call arrive in order, possibly late, or not at all."""

import random
from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from penstock.faults.world.event_loop import ProcessLoop
from penstock.faults.world.world import World

TO_SERVER, TO_CLIENT = 1, 0  # directions
DELAY_S = (0.0002, 0.002)  # range of s, one way
LATE_DELAY_S = (0.005, 0.08)  # range of s for late frames
WINDOW_BYTES = 65_536  # flow-control window of one call
MAX_LOGGED_CHARS = 200  # characters of one frame in the frame log
# Seconds until transport pings declare a silent peer dead, at the client and at the server, as the chassis sets them.
PING_TIMEOUT_S = {TO_CLIENT: 2.5, TO_SERVER: 8.0}


class Failpoint(NamedTuple):
    """A kind of frame, on one method in one direction, at which a fault can be injected."""

    method: str  # Service/Method
    direction: int
    kind: str  # the field of its oneof `frame`; empty if the message has none

    def __str__(self) -> str:
        name = self.method.removeprefix("penstock.").removeprefix("mesh.").removeprefix("v1.")
        return f"{name} {'->' if self.direction == TO_SERVER else '<-'} {self.kind or 'message'}"


class ConnectionSide(Protocol):
    """One side of a connection."""

    def on_lost(self, reason: str) -> None: ...


class Listener(Protocol):
    loop: ProcessLoop

    @property
    def active_methods(self) -> list[str]:
        """Service/Method of each active call."""

    def accept(self, connection: "Connection") -> ConnectionSide: ...

    def figures(self) -> dict[str, float]: ...


@dataclass(eq=False)
class Connection:
    """One connection between a channel and a server. Pairs have the client's value first."""

    loops: tuple[ProcessLoop, ProcessLoop]
    sides: list[ConnectionSide | None] = field(default_factory=lambda: [None, None])  # notified of the loss
    is_closed: list[bool] = field(default_factory=lambda: [False, False])
    # When the last message in transit to each side arrives.
    last_arrival_at: list[float] = field(default_factory=lambda: [0.0, 0.0])
    is_reset: bool = False  # messages in transit are lost as well
    control_stream: "MessageStream" = field(init=False)  # messages of no call: connected, GOAWAY

    def __post_init__(self) -> None:
        self.control_stream = MessageStream(self)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(loop.name for loop in self.loops)

    @property
    def is_open(self) -> bool:
        return not any(self.is_closed)


OnConnected = Callable[[Connection], ConnectionSide]
Callback = Callable[[], None]


@dataclass
class PendingSide:
    """The client's side of a connection until the client knows that it is connected."""

    on_failure: Callback

    def on_lost(self, reason: str) -> None:
        del reason
        self.on_failure()


@dataclass(eq=False)
class MessageStream:
    """An ordered stream of messages: one call on a connection."""

    connection: Connection
    method: str = ""  # Service/Method
    # When the last message in transit arrives, by direction.
    last_arrival_at: list[float] = field(default_factory=lambda: [0.0, 0.0])

    @property
    def is_open(self) -> bool:
        """Whether neither side has ended it, as far as the client knows."""
        return self.connection.is_open


class Network:
    """Delivers callbacks from loop to loop, with delays that the seed decides. Has the listeners by address."""

    def __init__(self, world: World, seed: int, *, late_share: float) -> None:
        """`late_share` is the share of frames with a long delay."""
        self.world = world
        self.listeners: dict[str, Listener] = {}
        self.connections: list[Connection] = []
        self.frames_by_failpoint: dict[Failpoint, int] = {}  # frames sent
        self.frame_digest = 0  # hash over all frames sent: sender, receiver, kind and time
        self.window_bytes: dict[str, int] = {}  # by client process, if not `WINDOW_BYTES`
        self.frame_log: list[str] | None = None  # a line for each frame and each fault; None: no log is kept
        self.on_failpoint: Callable[[Failpoint, Connection], None] = lambda _, __: None
        self.on_frame: Callable[[str, Any], None] = lambda _, __: None
        self._rng = random.Random(f"{seed} wire")
        self._late_share = late_share
        self._partitions: dict[frozenset[str], deque[tuple[Callable[..., None], tuple[Any, ...]]]] = {}
        # The loop of the server of each pending connect, by the function that fails it.
        self._pending_connects: dict[Callback, ProcessLoop] = {}

    @property
    def delay(self) -> float:
        low, high = LATE_DELAY_S if self._rng.random() < self._late_share else DELAY_S
        return low + (high - low) * self._rng.random()

    def delay_to(self, sender: ProcessLoop, receiver: ProcessLoop) -> float:
        """Return the delay of the next message from one process to another, in s."""
        del sender, receiver  # all processes of a mesh are at the same distance
        return self.delay

    # Connections.

    def connect(self, client: ProcessLoop, address: str, on_connected: OnConnected, on_failure: Callback) -> None:
        """Connect, then call `on_connected`, which returns the client's side, or `on_failure` on the client's loop."""
        listener = self.listeners.get(address)
        delay = self.delay_to(client, listener.loop) if listener else self.delay
        self._after(delay, self._arrive_at_listener, client, address, on_connected, on_failure)

    def _arrive_at_listener(
        self, client: ProcessLoop, address: str, on_connected: OnConnected, on_failure: Callback
    ) -> None:
        listener = self.listeners.get(address)
        if listener is None:
            self._after(self.delay, run_on, client, on_failure)
            return
        names = frozenset({client.name, listener.loop.name})
        if names in self._partitions:
            self._partitions[names].append((self._arrive_at_listener, (client, address, on_connected, on_failure)))
            return

        def fail_connect() -> None:
            del self._pending_connects[fail_connect]
            self._after(self.delay, run_on, client, on_failure)

        self._pending_connects[fail_connect] = listener.loop
        run_on(listener.loop, self._accept, listener, client, on_connected, on_failure, fail_connect)

    def _accept(
        self,
        listener: Listener,
        client: ProcessLoop,
        on_connected: OnConnected,
        on_failure: Callback,
        fail_connect: Callback,
    ) -> None:
        if self._pending_connects.pop(fail_connect, None) is None:
            return
        connection = Connection((client, listener.loop))
        connection.sides = [PendingSide(on_failure), listener.accept(connection)]
        self.connections.append(connection)

        def connect_client_side() -> None:
            connection.sides[TO_CLIENT] = on_connected(connection)

        self.deliver(connection.control_stream, TO_CLIENT, connect_client_side)

    # Messages.

    def send(
        self, stream: MessageStream, direction: int, message: Any, callback: Callable[..., None], *args: Any
    ) -> None:
        """Call `callback` at the other side; faults that are armed at this failpoint are injected first."""
        for frame in _frames(message):
            self._record_frame(Failpoint(stream.method, direction, _frame_kind(frame)), stream, frame)
        self.deliver(stream, direction, callback, *args)

    def _record_frame(self, failpoint: Failpoint, stream: MessageStream, frame: Any) -> None:
        connection = stream.connection
        self.frames_by_failpoint[failpoint] = self.frames_by_failpoint.get(failpoint, 0) + 1
        names = connection.loops[1 - failpoint.direction].name, connection.loops[failpoint.direction].name
        if self.frame_log is not None and failpoint.kind != "heartbeat":
            self.log(f"{self.world.now:.6f} {names[0]} {failpoint} {names[1]} {_format_frame(frame)}")
        self.frame_digest = hash((self.frame_digest, *names, failpoint.kind, round(self.world.now, 6)))
        self.on_frame(failpoint.kind, frame)
        self.on_failpoint(failpoint, connection)

    def log(self, text: str) -> None:
        if self.frame_log is not None:
            self.frame_log.append(text)

    def deliver(self, stream: MessageStream, direction: int, callback: Callable[..., None], *args: Any) -> None:
        loops = stream.connection.loops
        delay = self.delay_to(loops[1 - direction], loops[direction])
        stream.last_arrival_at[direction] = when = max(stream.last_arrival_at[direction], self.world.now + delay)
        last = stream.connection.last_arrival_at
        last[direction] = max(last[direction], when)
        self.world.schedule(when, self._arrive, stream.connection, direction, callback, args)

    def _arrive(
        self, connection: Connection, direction: int, callback: Callable[..., None], args: tuple[Any, ...]
    ) -> None:
        if connection.names in self._partitions:
            self._partitions[connection.names].append((self._arrive, (connection, direction, callback, args)))
        elif not (connection.is_reset or connection.is_closed[direction]):
            run_on(connection.loops[direction], callback, *args)

    def _after(self, seconds: float, callback: Callable[..., None], *args: Any) -> None:
        self.world.schedule(self.world.now + seconds, callback, *args)

    # Faults.

    def reset(self, connection: Connection) -> None:
        """Reset a connection: messages in transit are lost, and each side is notified after a delay of its own."""
        connection.is_reset = True
        for direction in (TO_CLIENT, TO_SERVER):
            self._lose_later(connection, direction, "connection reset", self.delay)

    def partition(self, names: frozenset[str], duration_s: float) -> None:
        """Hold back all traffic between two processes; deliver it afterwards on connections that are still open."""
        if names in self._partitions:
            return
        self._partitions[names] = deque()
        self._after(duration_s, self._heal_partition, names)
        for connection in self._connections_between(names):
            for direction, timeout_s in PING_TIMEOUT_S.items():
                if timeout_s < duration_s:
                    self._lose_later(connection, direction, "ping timeout", timeout_s)

    def _heal_partition(self, names: frozenset[str]) -> None:
        delayed = self._partitions.pop(names)
        for connection in self._connections_between(names):
            if connection.is_reset or not connection.is_open:
                self.reset(connection)
        for callback, args in delayed:
            callback(*args)

    def on_process_frozen(self, loop: ProcessLoop, seconds: float) -> None:
        """Lose the connections of a process that is frozen for longer than the ping timeouts of its peers."""
        for connection in self.connections:
            for direction, timeout_s in PING_TIMEOUT_S.items():
                if connection.loops[1 - direction] is loop and timeout_s < seconds:
                    self._lose_later(connection, direction, "ping timeout", timeout_s)
                    self._lose_later(connection, 1 - direction, "connection reset", seconds)

    def on_process_died(self, loop: ProcessLoop) -> None:
        """Close the connections and listeners of a dead process, as the kernel does."""
        for connection in [each for each in self.connections if loop in each.loops]:
            self.reset(connection)
        for address in [each for each, listener in self.listeners.items() if listener.loop is loop]:
            del self.listeners[address]
        for fail_connect in [each for each, server in self._pending_connects.items() if server is loop]:
            fail_connect()

    def close(self, connection: Connection, direction: int) -> None:
        """Close one side; the other side is notified after all earlier messages."""
        connection.is_closed[direction] = True
        after = max(0.0, connection.last_arrival_at[1 - direction] - self.world.now)
        self._lose_later(connection, 1 - direction, "closed by the peer", after + self.delay)

    def _lose_later(self, connection: Connection, direction: int, reason: str, seconds: float) -> None:
        self._after(seconds, self._lose_side, connection, direction, reason)

    def _lose_side(self, connection: Connection, direction: int, reason: str) -> None:
        if reason != "ping timeout" and connection.names in self._partitions:
            return  # the side is notified when the partition heals
        was_closed, connection.is_closed[direction] = connection.is_closed[direction], True
        if not was_closed:
            run_on(connection.loops[direction], _notify_lost, connection, direction, reason)
        if all(connection.is_closed) and connection in self.connections:
            self.connections.remove(connection)

    def _connections_between(self, names: frozenset[str]) -> list[Connection]:
        return [each for each in self.connections if each.names == names]


def run_on(loop: ProcessLoop, callback: Callable[..., None], *args: Any) -> None:
    """Run a callback on a loop, in an empty context: the sender's context variables are not inherited."""
    loop.call_soon(callback, *args, context=Context())


def _notify_lost(connection: Connection, direction: int, reason: str) -> None:
    """Tell the side that there is now: a process that was frozen may have learned only just that it is connected."""
    if side := connection.sides[direction]:
        side.on_lost(reason)


def _frames(message: Any) -> Any:
    """Return the frames of a combined message, or the message itself."""
    return getattr(message, "more", None) or (message,)


def _frame_kind(frame: Any) -> str:
    try:
        return frame.WhichOneof("frame") or ""
    except (AttributeError, ValueError):
        return ""


def _format_frame(message: Any) -> str:
    """Format a frame as one line."""
    return " ".join(str(message).split())[:MAX_LOGGED_CHARS]
