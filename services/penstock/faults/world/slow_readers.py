"""Clients that stop reading, and what edges may hold for them meanwhile: so much, and for so long."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.chassis import writing
from penstock.faults.checks.checker import Violation
from penstock.faults.grpc.fake_server import Server
from penstock.faults.mutations import BUFFER, LONG
from penstock.faults.nemesis import Nemesis

READER = "reader"  # the process of those that stop; the others do not share its connections
READER_WINDOW = 32  # bytes; two tokens or three
TOKEN = 6  # bytes, at most
PIECE = 4 * TOKEN  # bytes that come at once, or are just being written to others
UNREAD = 3.0  # s in place of the edge's own, for which a world would have to wait
EVERY = 0.05  # s
SLACK = 0.5  # s; for what runs late


@dataclass
class Watch:
    """Looks at all edges every now and then, while `count` clients of such a world stop reading."""

    nemesis: Nemesis
    count: int
    found: dict[str, Violation] = field(default_factory=dict)  # by what is wrong

    def begin(self) -> None:
        if self.count:
            self._again()

    def _again(self) -> None:
        world = self.nemesis.tiers.network.world
        self._look(world.now)
        world.at(world.now + EVERY, self._again)

    def _look(self, now: float) -> None:
        for process in self.nemesis.tiers.of("edge"):
            server = self.nemesis.tiers.network.listeners.get(process.address)
            if isinstance(server, Server) and process.loop is server.loop:
                self._judge_held(process.name, server.figures())
                self._judge_waiting(process.name, server, now)

    def _judge_held(self, name: str, figures: Mapping[str, float]) -> None:
        piece = LONG * TOKEN if self.nemesis.happened else PIECE  # what was held up comes at once
        held, most = figures["unread_bytes"], self.count * (BUFFER + piece)
        if held > most:
            self._note(
                "held", f"{name} holds {held:g} bytes for {self.count} clients that do not read, may hold {most}"
            )

    def _judge_waiting(self, name: str, server: Server, now: float) -> None:
        if "edge" in self.nemesis.touched:
            return  # it may have stood still itself
        for exchange in server.running:
            since = exchange.window.full_since
            if since is not None and now - since > writing.CLIENT_READ_TIMEOUT_S + SLACK:
                self._note("stalled", f"{name} still serves {exchange.method} to a client that takes nothing")

    def _note(self, kind: str, text: str) -> None:
        self.found.setdefault(kind, Violation(kind, text))
