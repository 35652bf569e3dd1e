"""Connections of one HTTP listener: how many are open, what they hold for unidentified callers, which are overdue."""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn

from penstock.chassis.errors import Overloaded, PenstockError

RETRY_AFTER_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionLimits:
    """Limits of one listener. A listener for a proxy alone has no limit per source and keeps idle connections."""

    max_connections: int = 4_096
    max_connections_per_source: int = 1_024  # 0: no limit
    header_timeout: float = 10.0  # s from the first byte of a request to the end of its headers
    idle_timeout: float = 75.0  # s without a request on a connection whose last caller is not known; 0: no limit
    max_unidentified_bytes: int = 64 << 20  # of headers, and of bodies whose caller is not known yet


class Phase(StrEnum):
    """What a connection waits for."""

    IDLE = "idle"  # the first byte of a request
    HEAD = "head"  # the end of its headers
    EXCHANGE = "exchange"  # the end of its response
    UNREAD = "unread"  # the end of a body that no one reads, because the response is complete


@dataclass(slots=True)
class ConnectionState:
    """Phase of one connection."""

    phase: Phase = Phase.IDLE
    since: float = 0.0  # when the phase began
    is_identified: bool = False  # whether the last request had a known caller

    def enter(self, phase: Phase, now: float) -> None:
        self.phase, self.since = phase, now

    def is_overdue(self, limits: ConnectionLimits, now: float) -> bool:
        waited = now - self.since
        match self.phase:
            case Phase.HEAD | Phase.UNREAD:
                return waited > limits.header_timeout
            case Phase.IDLE:
                return 0 < limits.idle_timeout < waited and not self.is_identified
            case Phase.EXCHANGE:  # body and response have limits of their own
                return False


class ConnectionTable:
    """Counts of one listener."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.connections = 0
        self.unidentified_bytes = 0
        self.refused = Counter[str]()  # by reason
        self._by_source = Counter[str]()

    def __repr__(self) -> str:
        return f"<ConnectionTable {self.connections} of {len(self._by_source)} sources>"

    def open(self, source: str) -> None:
        """Count a connection. Raises Overloaded, and counts nothing, if there are too many."""
        if self.connections >= self.limits.max_connections:
            self._refuse("CONNECTIONS_FULL", f"this edge has {self.connections} connections and accepts no more now")
        count = self._by_source.get(source, 0)
        if 0 < self.limits.max_connections_per_source <= count:
            self._refuse("SOURCE_CONNECTIONS_FULL", f"your address has {count} connections to this edge; close some")
        self.connections += 1
        self._by_source[source] += 1

    def close(self, source: str) -> None:
        self.connections -= 1
        self._by_source[source] -= 1
        if not self._by_source[source]:
            del self._by_source[source]

    def hold(self, size: int) -> None:
        """Count bytes that were read for a caller that is not known. Raises Overloaded if there are too many."""
        if self.unidentified_bytes + size > self.limits.max_unidentified_bytes:
            held = self.unidentified_bytes
            self._refuse("EDGE_FULL", f"this edge holds {held} bytes of callers that it does not know yet")
        self.unidentified_bytes += size

    def release(self, size: int) -> None:
        self.unidentified_bytes -= size

    def record(self, error: PenstockError) -> None:
        self.refused[error.reason] += 1

    def _refuse(self, reason: str, text: str) -> NoReturn:
        raise Overloaded(f"{text}; retry in {RETRY_AFTER_S:g} s", reason=reason, retry_after=RETRY_AFTER_S)
