"""Clients that stop reading, and what edges may hold for them meanwhile: so much, and for so long."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.chassis.server import write_timeout
from penstock.faults.checks.checker import Violation
from penstock.faults.grpc.fake_server import FakeServer
from penstock.faults.mutations import CLIENT_BUFFER_BYTES, LONG_ANSWER_TOKENS
from penstock.faults.nemesis import Nemesis

SLOW_READER_PROCESS = "reader"  # the process of those that stop; the others do not share its connections
READER_WINDOW_BYTES = 32  # bytes; two tokens or three
MAX_TOKEN_BYTES = 6  # bytes, at most
MAX_BURST_BYTES = 4 * MAX_TOKEN_BYTES  # bytes that come at once, or are just being written to others
CLIENT_READ_TIMEOUT_S = 3.0  # s in place of the edge's own, for which a world would have to wait
CHECK_INTERVAL_S = 0.05  # s
SLACK_S = 0.5  # s; for what runs late


@dataclass
class SlowReaderMonitor:
    """Looks at all edges every now and then, while `count` clients of such a world stop reading."""

    nemesis: Nemesis
    slow_readers: int
    violations: dict[str, Violation] = field(default_factory=dict)  # by what is wrong

    def start(self) -> None:
        if self.slow_readers:
            self._run_check()

    def _run_check(self) -> None:
        world = self.nemesis.tiers.network.world
        self._check_edges(world.now)
        world.schedule(world.now + CHECK_INTERVAL_S, self._run_check)

    def _check_edges(self, now: float) -> None:
        for process in self.nemesis.tiers.of("edge"):
            server = self.nemesis.tiers.network.listeners.get(process.address)
            if isinstance(server, FakeServer) and process.loop is server.loop:
                self._check_buffered(process.name, server.figures())
                self._check_stalled(process.name, server, now)

    def _check_buffered(self, name: str, figures: Mapping[str, float]) -> None:
        piece = (
            LONG_ANSWER_TOKENS * MAX_TOKEN_BYTES if self.nemesis.injected else MAX_BURST_BYTES
        )  # what was held up comes at once
        held, most = figures["unread_bytes"], self.slow_readers * (CLIENT_BUFFER_BYTES + piece)
        if held > most:
            self._record(
                "held", f"{name} holds {held:g} bytes for {self.slow_readers} clients that do not read, may hold {most}"
            )

    def _check_stalled(self, name: str, server: FakeServer, now: float) -> None:
        if "edge" in self.nemesis.disturbed:
            return  # it may have stood still itself
        for exchange in server.running:
            since = exchange.window.full_since
            if since is not None and now - since > write_timeout.CLIENT_READ_TIMEOUT_S + SLACK_S:
                self._record("stalled", f"{name} still serves {exchange.method} to a client that takes nothing")

    def _record(self, kind: str, text: str) -> None:
        self.violations.setdefault(kind, Violation(kind, text))
