"""Slow readers: clients that stop reading, and the limits of bytes and time that edges may hold for them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.chassis.server import write_timeout
from penstock.faults.checks.checker import Violation
from penstock.faults.grpc.fake_server import FakeServer
from penstock.faults.mutations import CLIENT_BUFFER_BYTES, LONG_ANSWER_TOKENS
from penstock.faults.nemesis import Nemesis

SLOW_READER_PROCESS = "reader"  # the process of the slow readers, which share no connection with the other clients
READER_WINDOW_BYTES = 32  # flow-control window of a slow reader, two or three tokens
MAX_TOKEN_BYTES = 6  # of one message with one token
MAX_BURST_BYTES = 4 * MAX_TOKEN_BYTES  # tokens that arrive at once, or are being written to other clients
CLIENT_READ_TIMEOUT_S = 3.0  # s, instead of the shipped timeout, which would slow down every world
CHECK_INTERVAL_S = 0.05  # s between two checks
SLACK_S = 0.5  # s that a timeout may be late


@dataclass
class SlowReaderMonitor:
    """Checks all edges at intervals, if the world has slow readers."""

    nemesis: Nemesis
    slow_readers: int  # clients that stop reading
    violations: dict[str, Violation] = field(default_factory=dict)  # by kind; the first of each

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
        # After a fault, all delayed tokens of an answer may arrive at once.
        burst = LONG_ANSWER_TOKENS * MAX_TOKEN_BYTES if self.nemesis.injected else MAX_BURST_BYTES
        held, limit = figures["unread_bytes"], self.slow_readers * (CLIENT_BUFFER_BYTES + burst)
        if held > limit:
            self._record(
                "held", f"{name} holds {held:g} bytes for {self.slow_readers} slow readers; the limit is {limit} bytes"
            )

    def _check_stalled(self, name: str, server: FakeServer, now: float) -> None:
        if "edge" in self.nemesis.disturbed:
            return  # the edge may have been frozen itself
        for stream in server.running:
            since = stream.window.full_since
            if since is not None and now - since > write_timeout.CLIENT_READ_TIMEOUT_S + SLACK_S:
                self._record("stalled", f"{name} still serves {stream.method} to a client that has stopped reading")

    def _record(self, kind: str, text: str) -> None:
        self.violations.setdefault(kind, Violation(kind, text))
