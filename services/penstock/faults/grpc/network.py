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
DELAY = (0.0002, 0.002)  # s; one way
LATE = (0.005, 0.08)  # s
WINDOW = 65_536  # bytes of one call that may be on their way to a client or wait for it to read
WIDTH = 200  # characters of a frame in a story
# When transport pings have given a silent peer up, in s: those of clients and those of servers, as in the chassis.
PINGS_GIVE_UP = {TO_CLIENT: 2.5, TO_SERVER: 8.0}


class Point(NamedTuple):
    """A place in the protocol at which something can go wrong: a frame about to leave its sender."""

    method: str  # Service/Method
    way: int
    kind: str  # which of its oneof `frame`; empty where it has none

    def __str__(self) -> str:
        name = self.method.removeprefix("penstock.").removeprefix("mesh.").removeprefix("v1.")
        return f"{name} {'->' if self.way == TO_SERVER else '<-'} {self.kind or 'message'}"


class Closable(Protocol):
    """One side of a connection, as the connection knows it."""

    def lost(self, why: str) -> None: ...


class Listener(Protocol):
    loop: ProcessLoop

    @property
    def methods(self) -> list[str]:
        """Of the calls under way, Service/Method of each."""

    def accept(self, connection: "Connection") -> Closable: ...

    def figures(self) -> dict[str, float]: ...


@dataclass(eq=False)
class Connection:
    """Between a channel and a server: pairs of the client's, which is first, and the server's."""

    loops: tuple[ProcessLoop, ProcessLoop]  # whose the sides are
    sides: list[Closable | None] = field(default_factory=lambda: [None, None])  # that hear when it is gone
    gone: list[bool] = field(default_factory=lambda: [False, False])  # who has given it up
    last: list[float] = field(default_factory=lambda: [0.0, 0.0])  # when all that is under way to it has arrived
    is_cut: bool = False  # nothing arrives any more, not even what is under way
    control: "Line" = field(init=False)  # what is said on no call: that it is there, that it takes no more calls

    def __post_init__(self) -> None:
        self.control = Line(self)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(loop.name for loop in self.loops)

    @property
    def is_open(self) -> bool:
        return not any(self.gone)


@dataclass
class Unjoined:
    """A client's side until it has heard that its connection is there."""

    down: Callable[[], None]

    def lost(self, why: str) -> None:
        del why
        self.down()


@dataclass(eq=False)
class Line:
    """What arrives in the order in which it was said: one call on a connection."""

    connection: Connection
    method: str = ""  # Service/Method
    due: list[float] = field(default_factory=lambda: [0.0, 0.0])  # by way: when the last that was said arrives


class Network:
    """Carries callbacks from loop to loop, with delays that the seed draws. Knows listeners by address."""

    def __init__(self, world: World, seed: int, *, roughness: float) -> None:
        """`roughness`: share of frames that come late."""
        self.world = world
        self.listeners: dict[str, Listener] = {}
        self.connections: list[Connection] = []
        self.seen: dict[Point, int] = {}  # frames that left
        self.trace = 0  # a digest of all that left, by whom and when
        self.windows: dict[str, int] = {}  # bytes, by client, where it is not WINDOW
        self.story: list[str] | None = None  # a line for each frame and each fault, where somebody wants to read it
        self.watch: Callable[[Point, Connection], None] = lambda _, __: None
        self.hear: Callable[[str, Any], None] = lambda _, __: None
        self._draw = random.Random(f"{seed} wire")
        self._roughness = roughness
        self._holes: dict[frozenset[str], deque[tuple[Callable[..., None], tuple[Any, ...]]]] = {}
        self._attempts: dict[Callable[[], None], ProcessLoop] = {}  # to connect, by how to refuse them: of whom

    @property
    def delay(self) -> float:
        low, high = LATE if self._draw.random() < self._roughness else DELAY
        return low + (high - low) * self._draw.random()

    # Connecting.

    def connect(
        self, client: ProcessLoop, address: str, up: Callable[[Connection], Closable], down: Callable[[], None]
    ) -> None:
        """Call `up` or `down` on the client's loop, sooner or later; `up` gives the client's side."""
        self._after(self.delay, self._reach, client, address, up, down)

    def _reach(
        self, client: ProcessLoop, address: str, up: Callable[[Connection], Closable], down: Callable[[], None]
    ) -> None:
        listener = self.listeners.get(address)
        if listener is None:
            self._after(self.delay, call_on, client, down)
            return
        names = frozenset({client.name, listener.loop.name})
        if names in self._holes:
            self._holes[names].append((self._reach, (client, address, up, down)))
            return

        def refuse() -> None:
            del self._attempts[refuse]
            self._after(self.delay, call_on, client, down)

        self._attempts[refuse] = listener.loop
        call_on(listener.loop, self._accept, listener, client, up, down, refuse)

    def _accept(
        self,
        listener: Listener,
        client: ProcessLoop,
        up: Callable[[Connection], Closable],
        down: Callable[[], None],
        refuse: Callable[[], None],
    ) -> None:
        if self._attempts.pop(refuse, None) is None:
            return
        connection = Connection((client, listener.loop))
        connection.sides = [Unjoined(down), listener.accept(connection)]
        self.connections.append(connection)

        def join() -> None:
            connection.sides[TO_CLIENT] = up(connection)

        self.deliver(connection.control, TO_CLIENT, join)

    # Carrying.

    def send(self, line: Line, way: int, message: Any, act: Callable[..., None], *args: Any) -> None:
        """Have `act` called at the other side; what is armed at this point of the protocol goes off first."""
        for frame in _frames(message):
            self._pass(Point(line.method, way, _kind(frame)), line.connection, frame)
        self.deliver(line, way, act, *args)

    def _pass(self, point: Point, connection: Connection, frame: Any) -> None:
        self.seen[point] = self.seen.get(point, 0) + 1
        names = connection.loops[1 - point.way].name, connection.loops[point.way].name
        if self.story is not None and point.kind != "heartbeat":
            self.tell(f"{self.world.now:.6f} {names[0]} {point} {names[1]} {_said(frame)}")
        self.trace = hash((self.trace, *names, point.kind, round(self.world.now, 6)))
        self.hear(point.kind, frame)
        self.watch(point, connection)

    def tell(self, what: str) -> None:
        if self.story is not None:
            self.story.append(what)

    def deliver(self, line: Line, way: int, act: Callable[..., None], *args: Any) -> None:
        line.due[way] = when = max(line.due[way], self.world.now + self.delay)
        last = line.connection.last
        last[way] = max(last[way], when)
        self.world.at(when, self._arrive, line.connection, way, act, args)

    def _arrive(self, connection: Connection, way: int, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        if connection.names in self._holes:
            self._holes[connection.names].append((self._arrive, (connection, way, act, args)))
        elif not (connection.is_cut or connection.gone[way]):
            call_on(connection.loops[way], act, *args)

    def _after(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        self.world.at(self.world.now + seconds, act, *args)

    # What goes wrong.

    def cut(self, connection: Connection) -> None:
        """Reset a connection: what is under way is lost, and each side hears of it by itself."""
        connection.is_cut = True
        for way in (TO_CLIENT, TO_SERVER):
            self._give_up(connection, way, "connection reset", self.delay)

    def open_hole(self, names: frozenset[str], seconds: float) -> None:
        """Let nothing through between two processes for a while; then all comes, unless somebody gave up meanwhile."""
        if names in self._holes:
            return
        self._holes[names] = deque()
        self._after(seconds, self._close_hole, names)
        for connection in self._of(names):
            for way, patience in PINGS_GIVE_UP.items():
                if patience < seconds:
                    self._give_up(connection, way, "ping timeout", patience)

    def _close_hole(self, names: frozenset[str]) -> None:
        held = self._holes.pop(names)
        for connection in self._of(names):
            if connection.is_cut or not connection.is_open:
                self.cut(connection)
        for act, args in held:
            act(*args)

    def froze(self, loop: ProcessLoop, seconds: float) -> None:
        """Peers of a process that stands still for `seconds` give it up by their pings, where that is long enough."""
        for connection in self.connections:
            for way, patience in PINGS_GIVE_UP.items():
                if connection.loops[1 - way] is loop and patience < seconds:
                    self._give_up(connection, way, "ping timeout", patience)
                    self._give_up(connection, 1 - way, "connection reset", seconds)

    def died(self, loop: ProcessLoop) -> None:
        """The kernel closes what a dead process had open."""
        for connection in [each for each in self.connections if loop in each.loops]:
            self.cut(connection)
        for address in [each for each, listener in self.listeners.items() if listener.loop is loop]:
            del self.listeners[address]
        for refuse in [each for each, server in self._attempts.items() if server is loop]:
            refuse()

    def close(self, connection: Connection, way: int) -> None:
        """Close from one side; the other hears of it after all that was said before."""
        connection.gone[way] = True
        after = max(0.0, connection.last[1 - way] - self.world.now)
        self._give_up(connection, 1 - way, "closed by the peer", after + self.delay)

    def _give_up(self, connection: Connection, way: int, why: str, seconds: float) -> None:
        self._after(seconds, self._lose, connection, way, why)

    def _lose(self, connection: Connection, way: int, why: str) -> None:
        if why != "ping timeout" and connection.names in self._holes:
            return  # it will hear once the hole is closed
        was_gone, connection.gone[way] = connection.gone[way], True
        side = connection.sides[way]
        if side is not None and not was_gone:
            call_on(connection.loops[way], side.lost, why)
        if all(connection.gone) and connection in self.connections:
            self.connections.remove(connection)

    def _of(self, names: frozenset[str]) -> list[Connection]:
        return [each for each in self.connections if each.names == names]


def call_on(loop: ProcessLoop, act: Callable[..., None], *args: Any) -> None:
    """Run on a loop, in a context of its own: nothing of whoever said it comes along."""
    loop.call_soon(act, *args, context=Context())


def _frames(message: Any) -> Any:
    """Those that go as one, or the message itself."""
    return getattr(message, "more", None) or (message,)


def _kind(frame: Any) -> str:
    try:
        return frame.WhichOneof("frame") or ""
    except ValueError:
        return ""


def _said(message: Any) -> str:
    """A frame in one line."""
    return " ".join(str(message).split())[:WIDTH]
