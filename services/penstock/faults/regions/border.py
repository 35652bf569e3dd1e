"""The network between regions: a longer way, region doors, and links that are cut in one direction or in both."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.faults.grpc.network import (
    PING_TIMEOUT_S,
    TO_SERVER,
    Callback,
    Connection,
    Failpoint,
    MessageStream,
    Network,
    OnConnected,
)
from penstock.faults.world.event_loop import ProcessLoop
from penstock.faults.world.world import World

Held = tuple[Callable[..., None], tuple[Any, ...]]


class Direction(NamedTuple):
    """One direction of the link between two regions."""

    sender: str
    receiver: str


class BorderFrame(NamedTuple):
    """A frame, and the regions of its sender and its receiver, which may be the same."""

    at: float  # s of the world, when it was sent
    stream: MessageStream
    direction: Direction
    kind: str
    frame: Any


def region_of(loop: ProcessLoop) -> str:
    """Return the region of a process or of a client, with which its name begins."""
    return loop.name.partition("-")[0]


class BorderNetwork(Network):
    """A network whose processes are in regions. A region door leads to a listening process of its region, in turn."""

    def __init__(
        self, world: World, seed: int, *, late_share: float, trip_s: float, doors: Mapping[str, Sequence[str]]
    ) -> None:
        """trip_s: s from one region to another, one way. doors: addresses of the processes behind each region door."""
        super().__init__(world, seed, late_share=late_share)
        self.on_border_frame: Callable[[BorderFrame], None] = lambda _: None
        self._trip_s = trip_s
        self._doors = {door: list(behind) for door, behind in doors.items()}  # next process first
        self._cuts: dict[Direction, deque[Held]] = {}
        self._added_delays: dict[Direction, float] = {}  # s

    # Faults.

    def cut(self, direction: Direction, duration_s: float) -> None:
        """Hold back all traffic in one direction; deliver it afterwards on connections that are still open."""
        if direction in self._cuts:
            return
        self._cuts[direction] = deque()
        self._after(duration_s, self._heal, direction)
        for connection in self._connections_across(direction):
            for side, timeout_s in PING_TIMEOUT_S.items():
                if timeout_s < duration_s:
                    self._lose_later(connection, side, "ping timeout", timeout_s)

    def slow_down(self, direction: Direction, delay_s: float, duration_s: float) -> None:
        """Add a delay to all messages in one direction. The last of overlapping delays holds."""
        self._added_delays[direction] = delay_s
        self._after(duration_s, self._end_delay, direction)

    def _end_delay(self, direction: Direction) -> None:
        self._added_delays.pop(direction, None)

    def _heal(self, direction: Direction) -> None:
        held = self._cuts.pop(direction)
        for connection in self._connections_across(direction):
            if connection.is_reset or not connection.is_open:
                self.reset(connection)
        for callback, args in held:
            callback(*args)

    def _connections_across(self, direction: Direction) -> list[Connection]:
        return [each for each in self.connections if {region_of(loop) for loop in each.loops} == set(direction)]

    # Messages.

    def connect(self, client: ProcessLoop, address: str, on_connected: OnConnected, on_failure: Callback) -> None:
        super().connect(client, self._process_behind(address), on_connected, on_failure)

    def _process_behind(self, address: str) -> str:
        """Return the address of the next listening process behind a region door, or the address of a process itself."""
        behind = self._doors.get(address)
        if behind is None:
            return address
        chosen = next((each for each in behind if each in self.listeners), behind[0])
        behind.remove(chosen)
        behind.append(chosen)
        return chosen

    def delay_to(self, sender: ProcessLoop, receiver: ProcessLoop) -> float:
        direction = Direction(region_of(sender), region_of(receiver))
        trip_s = 0.0 if direction.sender == direction.receiver else self._trip_s
        return super().delay_to(sender, receiver) + trip_s + self._added_delays.get(direction, 0.0)

    def _arrive_at_listener(
        self, client: ProcessLoop, address: str, on_connected: OnConnected, on_failure: Callback
    ) -> None:
        listener = self.listeners.get(address)
        held = self._cuts.get(Direction(region_of(client), region_of(listener.loop))) if listener else None
        if held is None:
            super()._arrive_at_listener(client, address, on_connected, on_failure)
        else:
            held.append((self._arrive_at_listener, (client, address, on_connected, on_failure)))

    def _arrive(
        self, connection: Connection, direction: int, callback: Callable[..., None], args: tuple[Any, ...]
    ) -> None:
        held = self._cuts.get(_across(connection, direction))
        if held is None:
            super()._arrive(connection, direction, callback, args)
        else:
            held.append((self._arrive, (connection, direction, callback, args)))

    def _lose_side(self, connection: Connection, direction: int, reason: str) -> None:
        held = self._cuts.get(_across(connection, direction))
        if held is None or reason == "ping timeout":
            super()._lose_side(connection, direction, reason)
        else:
            held.append((self._lose_side, (connection, direction, reason)))

    def _record_frame(self, failpoint: Failpoint, stream: MessageStream, frame: Any) -> None:
        super()._record_frame(failpoint, stream, frame)
        direction = _across(stream.connection, failpoint.direction)
        self.on_border_frame(BorderFrame(self.world.now, stream, direction, failpoint.kind, frame))


def _across(connection: Connection, direction: int) -> Direction:
    client, server = map(region_of, connection.loops)
    return Direction(client, server) if direction == TO_SERVER else Direction(server, client)
