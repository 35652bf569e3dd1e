"""The network between processes: what is said on one call arrives in order, late, or not at all."""

import random
from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from penstock.faults.world.event_loop import ProcessLoop
from penstock.faults.world.world import World

TO_SERVER, TO_CLIENT = 1, 0  # ways
DELAY_S = (0.0002, 0.002)  # s; one way
LATE_DELAY_S = (0.005, 0.08)  # s
WINDOW_BYTES = 65_536  # bytes of one call that may be on their way to a client or wait for it to read
MAX_LOGGED_CHARS = 200  # characters of a frame in a story
# When transport pings have given a silent peer up, in s: those of clients and those of servers, as in the chassis.
PING_TIMEOUT_S = {TO_CLIENT: 2.5, TO_SERVER: 8.0}


class Failpoint(NamedTuple):
    """A place in the protocol at which something can go wrong: a frame about to leave its sender."""

    method: str  # Service/Method
    direction: int
    kind: str  # which of its oneof `frame`; empty where it has none

    def __str__(self) -> str:
        name = self.method.removeprefix("penstock.").removeprefix("mesh.").removeprefix("v1.")
        return f"{name} {'->' if self.direction == TO_SERVER else '<-'} {self.kind or 'message'}"


class ConnectionSide(Protocol):
    """One side of a connection, as the connection knows it."""

    def on_lost(self, reason: str) -> None: ...


class Listener(Protocol):
    loop: ProcessLoop

    @property
    def active_methods(self) -> list[str]:
        """Of the calls under way, Service/Method of each."""

    def accept(self, connection: "Connection") -> ConnectionSide: ...

    def figures(self) -> dict[str, float]: ...


@dataclass(eq=False)
class Connection:
    """Between a channel and a server: pairs of the client's, which is first, and the server's."""

    loops: tuple[ProcessLoop, ProcessLoop]  # whose the sides are
    sides: list[ConnectionSide | None] = field(default_factory=lambda: [None, None])  # that hear when it is gone
    is_closed: list[bool] = field(default_factory=lambda: [False, False])  # who has given it up
    last_arrival_at: list[float] = field(
        default_factory=lambda: [0.0, 0.0]
    )  # when all that is under way to it has arrived
    is_reset: bool = False  # nothing arrives any more, not even what is under way
    control_stream: "MessageStream" = field(
        init=False
    )  # what is said on no call: that it is there, that it takes no more calls

    def __post_init__(self) -> None:
        self.control_stream = MessageStream(self)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(loop.name for loop in self.loops)

    @property
    def is_open(self) -> bool:
        return not any(self.is_closed)


@dataclass
class PendingSide:
    """A client's side until it has heard that its connection is there."""

    on_failure: Callable[[], None]

    def on_lost(self, reason: str) -> None:
        del reason
        self.on_failure()


@dataclass(eq=False)
class MessageStream:
    """What arrives in the order in which it was said: one call on a connection."""

    connection: Connection
    method: str = ""  # Service/Method
    last_arrival_at: list[float] = field(
        default_factory=lambda: [0.0, 0.0]
    )  # by way: when the last that was said arrives


class Network:
    """Carries callbacks from loop to loop, with delays that the seed draws. Knows listeners by address."""

    def __init__(self, world: World, seed: int, *, late_share: float) -> None:
        """`roughness`: share of frames that come late."""
        self.world = world
        self.listeners: dict[str, Listener] = {}
        self.connections: list[Connection] = []
        self.frames_by_failpoint: dict[Failpoint, int] = {}  # frames that left
        self.frame_digest = 0  # a digest of all that left, by whom and when
        self.window_bytes: dict[str, int] = {}  # bytes, by client, where it is not WINDOW
        self.frame_log: list[str] | None = None  # a line for each frame and each fault, where somebody wants to read it
        self.on_failpoint: Callable[[Failpoint, Connection], None] = lambda _, __: None
        self.on_frame: Callable[[str, Any], None] = lambda _, __: None
        self._rng = random.Random(f"{seed} wire")
        self._late_share = late_share
        self._partitions: dict[frozenset[str], deque[tuple[Callable[..., None], tuple[Any, ...]]]] = {}
        self._pending_connects: dict[Callable[[], None], ProcessLoop] = {}  # to connect, by how to refuse them: of whom

    @property
    def delay(self) -> float:
        low, high = LATE_DELAY_S if self._rng.random() < self._late_share else DELAY_S
        return low + (high - low) * self._rng.random()

    # Connecting.

    def connect(
        self,
        client: ProcessLoop,
        address: str,
        on_connected: Callable[[Connection], ConnectionSide],
        on_failure: Callable[[], None],
    ) -> None:
        """Call `up` or `down` on the client's loop, sooner or later; `up` gives the client's side."""
        self._after(self.delay, self._arrive_at_listener, client, address, on_connected, on_failure)

    def _arrive_at_listener(
        self,
        client: ProcessLoop,
        address: str,
        on_connected: Callable[[Connection], ConnectionSide],
        on_failure: Callable[[], None],
    ) -> None:
        listener = self.listeners.get(address)
        if listener is None:
            self._after(self.delay, run_on, client, on_failure)
            return
        names = frozenset({client.name, listener.loop.name})
        if names in self._partitions:
            self._partitions[names].append((self._arrive_at_listener, (client, address, on_connected, on_failure)))
            return

        def refuse() -> None:
            del self._pending_connects[refuse]
            self._after(self.delay, run_on, client, on_failure)

        self._pending_connects[refuse] = listener.loop
        run_on(listener.loop, self._accept, listener, client, on_connected, on_failure, refuse)

    def _accept(
        self,
        listener: Listener,
        client: ProcessLoop,
        on_connected: Callable[[Connection], ConnectionSide],
        on_failure: Callable[[], None],
        refuse: Callable[[], None],
    ) -> None:
        if self._pending_connects.pop(refuse, None) is None:
            return
        connection = Connection((client, listener.loop))
        connection.sides = [PendingSide(on_failure), listener.accept(connection)]
        self.connections.append(connection)

        def join() -> None:
            connection.sides[TO_CLIENT] = on_connected(connection)

        self.deliver(connection.control_stream, TO_CLIENT, join)

    # Carrying.

    def send(
        self, stream: MessageStream, direction: int, message: Any, callback: Callable[..., None], *args: Any
    ) -> None:
        """Have `act` called at the other side; what is armed at this point of the protocol goes off first."""
        for frame in _frames(message):
            self._record_frame(Failpoint(stream.method, direction, _frame_kind(frame)), stream.connection, frame)
        self.deliver(stream, direction, callback, *args)

    def _record_frame(self, failpoint: Failpoint, connection: Connection, frame: Any) -> None:
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
        stream.last_arrival_at[direction] = when = max(stream.last_arrival_at[direction], self.world.now + self.delay)
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

    # What goes wrong.

    def reset(self, connection: Connection) -> None:
        """Reset a connection: what is under way is lost, and each side hears of it by itself."""
        connection.is_reset = True
        for way in (TO_CLIENT, TO_SERVER):
            self._lose_later(connection, way, "connection reset", self.delay)

    def partition(self, names: frozenset[str], duration_s: float) -> None:
        """Let nothing through between two processes for a while; then all comes, unless somebody gave up meanwhile."""
        if names in self._partitions:
            return
        self._partitions[names] = deque()
        self._after(duration_s, self._heal_partition, names)
        for connection in self._connections_between(names):
            for way, patience in PING_TIMEOUT_S.items():
                if patience < duration_s:
                    self._lose_later(connection, way, "ping timeout", patience)

    def _heal_partition(self, names: frozenset[str]) -> None:
        held = self._partitions.pop(names)
        for connection in self._connections_between(names):
            if connection.is_reset or not connection.is_open:
                self.reset(connection)
        for act, args in held:
            act(*args)

    def on_process_frozen(self, loop: ProcessLoop, seconds: float) -> None:
        """Peers of a process that stands still for `seconds` give it up by their pings, where that is long enough."""
        for connection in self.connections:
            for way, patience in PING_TIMEOUT_S.items():
                if connection.loops[1 - way] is loop and patience < seconds:
                    self._lose_later(connection, way, "ping timeout", patience)
                    self._lose_later(connection, 1 - way, "connection reset", seconds)

    def on_process_died(self, loop: ProcessLoop) -> None:
        """The kernel closes what a dead process had open."""
        for connection in [each for each in self.connections if loop in each.loops]:
            self.reset(connection)
        for address in [each for each, listener in self.listeners.items() if listener.loop is loop]:
            del self.listeners[address]
        for refuse in [each for each, server in self._pending_connects.items() if server is loop]:
            refuse()

    def close(self, connection: Connection, direction: int) -> None:
        """Close from one side; the other hears of it after all that was said before."""
        connection.is_closed[direction] = True
        after = max(0.0, connection.last_arrival_at[1 - direction] - self.world.now)
        self._lose_later(connection, 1 - direction, "closed by the peer", after + self.delay)

    def _lose_later(self, connection: Connection, direction: int, reason: str, seconds: float) -> None:
        self._after(seconds, self._lose_side, connection, direction, reason)

    def _lose_side(self, connection: Connection, direction: int, reason: str) -> None:
        if reason != "ping timeout" and connection.names in self._partitions:
            return  # it will hear once the hole is closed
        was_gone, connection.is_closed[direction] = connection.is_closed[direction], True
        side = connection.sides[direction]
        if side is not None and not was_gone:
            run_on(connection.loops[direction], side.on_lost, reason)
        if all(connection.is_closed) and connection in self.connections:
            self.connections.remove(connection)

    def _connections_between(self, names: frozenset[str]) -> list[Connection]:
        return [each for each in self.connections if each.names == names]


def run_on(loop: ProcessLoop, callback: Callable[..., None], *args: Any) -> None:
    """Run on a loop, in a context of its own: nothing of whoever said it comes along."""
    loop.call_soon(callback, *args, context=Context())


def _frames(message: Any) -> Any:
    """Those that go as one, or the message itself."""
    return getattr(message, "more", None) or (message,)


def _frame_kind(frame: Any) -> str:
    try:
        return frame.WhichOneof("frame") or ""
    except ValueError:
        return ""


def _format_frame(message: Any) -> str:
    """A frame in one line."""
    return " ".join(str(message).split())[:MAX_LOGGED_CHARS]
