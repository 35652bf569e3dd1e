"""The common part of attacks: bounds, pace, connections, and the report of actions and responses."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.proofs.hostile.ports import Port, PortKind
from penstock.proofs.hostile.wire import CONNECTION_ERRORS
from penstock.proofs.hostile.wire.http2 import RECEIVE_WINDOW, Http2Connection, open_http2

MAX_BYTES = 1 << 30  # that one attack sends
MAX_CONNECTIONS = 400  # that one attack opens
RECONNECT_S = 0.25  # s before an attack whose connection was cut opens another


class AttackOver(Exception):
    """The attack has spent its time, bytes or connections."""


@dataclass(slots=True, kw_only=True)
class AttackReport:
    """What an attack did, and what it got."""

    connections: int = 0
    cut: int = 0  # connections that the mesh closed or refused
    sent: int = 0  # frames, requests or pieces, by the kind of the attack
    sent_bytes: int = 0
    accepted: int = 0  # successes that the attacker should not get
    findings: dict[str, float] = field(default_factory=dict)
    cpu_s: float = 0.0  # s of the attacker
    took_s: float = 0.0
    error: str = ""  # the attack itself failed, so that it proves nothing

    @property
    def cpu_share(self) -> float:
        return self.cpu_s / max(1e-9, self.took_s)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True, kw_only=True)
class AttackRun:
    """One attack on one port, until it is over."""

    port: Port
    api_key: str
    model: str
    seconds: float
    count: int = 0  # of resets; 0: as many as the time allows
    report: AttackReport = field(default_factory=AttackReport)
    started_at: float = field(default_factory=time.monotonic)
    ports: Mapping[PortKind, Port] = field(default_factory=dict)  # further ports of the mesh

    @property
    def left_s(self) -> float:
        return max(0.0, self.started_at + self.seconds - time.monotonic())

    @property
    def is_over(self) -> bool:
        return not self.left_s or self.report.sent_bytes >= MAX_BYTES

    def count_sent(self, data: bytes, pieces: int = 1) -> bytes:
        """Count what is about to be sent. Raises AttackOver beyond the bounds."""
        if self.is_over:
            raise AttackOver
        self.report.sent += pieces
        self.report.sent_bytes += len(data)
        return data

    @asynccontextmanager
    async def http2(
        self, *, initial_window: int = RECEIVE_WINDOW, grants_window: bool = True
    ) -> AsyncIterator[Http2Connection]:
        """Open a connection, and count whether the mesh has cut it at the end of the block. Raises AttackOver."""
        self._count_connection()
        address = self.port.endpoint
        async with open_http2(address, initial_window=initial_window, grants_window=grants_window) as connection:
            try:
                yield connection
            finally:
                self.report.cut += connection.closed.is_set()

    @asynccontextmanager
    async def tcp(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        self._count_connection()
        reader, writer = await asyncio.open_connection(*self.port.endpoint)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()

    def _count_connection(self) -> None:
        if self.is_over or self.report.connections >= MAX_CONNECTIONS:
            raise AttackOver
        self.report.connections += 1

    async def repeat(self, attack_once: Callable[["AttackRun"], Awaitable[None]]) -> None:
        """Attack by one connection after the other until the run is over."""
        while not self.is_over:
            try:
                await attack_once(self)
            except AttackOver:
                return
            except CONNECTION_ERRORS:  # the mesh refuses the connection, or has cut it
                self.report.cut += 1
            await asyncio.sleep(min(RECONNECT_S, self.left_s))

    async def hold(self) -> None:
        """Wait until the run is over."""
        await asyncio.sleep(self.left_s)


class Pace:
    """Lets an attack take `rate` steps per second, whatever its machine could do."""

    def __init__(self, rate: float) -> None:
        self._interval_s = 1.0 / rate
        self._due_at = time.monotonic()

    async def wait(self, steps: int = 1) -> None:
        """Wait until the steps so far are within the rate. Steps that were missed are not caught up beyond 0.1 s."""
        now = time.monotonic()
        self._due_at = max(self._due_at, now - 0.1) + steps * self._interval_s
        await asyncio.sleep(max(0.0, self._due_at - now))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """An attack that lasts, and the kinds of ports that it is for."""

    run: Callable[[AttackRun], Awaitable[None]]
    kinds: tuple[PortKind, ...]
    min_seconds: float = 0.0  # below, it has not done its damage
    max_findings: Mapping[str, float] = field(default_factory=dict)  # goals of figures in `AttackReport.findings`
