"""Calls of unidentified callers, by connection: how many may wait for auth, and which connections only do harm."""

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TypeVar

from penstock.chassis.errors import Overloaded

Value = TypeVar("Value")

RETRY_AFTER_S = 1.0
FAILURES_PER_CLOSE = 20  # beyond the limit: to accept a connection costs as much as to refuse two calls
MAX_TRACKED = 10_000  # connections, or addresses; the oldest are forgotten first


@dataclass(slots=True)
class _Failures:
    """Calls from one address that were refused or cancelled before their caller was known."""

    since: float  # when the present window began
    count: int = 0


class UnidentifiedCalls:
    """Counts calls by connection from their arrival until their caller is known. Known callers do not count.

    A connection is named as gRPC names its peer, address and port.
    """

    def __init__(self, *, max_waiting: int, max_failures: int, window: float) -> None:
        self._max_waiting = max_waiting  # of one connection; 0: no limit
        self._max_failures = max_failures  # of one address within the window; 0: no limit
        self._window = window  # s
        self._waiting = Counter[str]()  # calls whose caller auth is being asked about, by connection
        self._failures: OrderedDict[str, _Failures] = OrderedDict()  # by address
        self._known: OrderedDict[str, None] = OrderedDict()  # connections with a known caller
        self.refused = Counter[str]()  # by reason

    def __repr__(self) -> str:
        return f"<UnidentifiedCalls {self._waiting.total()} waiting, of {len(self._failures)} addresses>"

    def mark_known(self, peer: str) -> None:
        """Record that a caller on this connection is known, so that it is not closed for calls of others."""
        if peer not in self._known:
            _put(self._known, peer, None)

    def begin(self, peer: str, *, is_proxy: bool) -> None:
        """Count a call. Raises Overloaded, and counts nothing, if too many wait on the connection of a client."""
        waiting = self._waiting.get(peer, 0)
        if 0 < self._max_waiting <= waiting and not is_proxy:
            self.refused["CALLERS_UNIDENTIFIED"] += 1
            text = f"{waiting} calls on this connection wait for their keys to be checked; retry in {RETRY_AFTER_S:g} s"
            raise Overloaded(text, reason="CALLERS_UNIDENTIFIED", retry_after=RETRY_AFTER_S)
        self._waiting[peer] = waiting + 1

    def end(self, peer: str, now: float, *, is_identified: bool, is_proxy: bool) -> bool:
        """Uncount a call that `begin` has counted. Returns whether its connection should be closed."""
        self._waiting[peer] -= 1
        if not self._waiting[peer]:
            del self._waiting[peer]
        if is_identified:
            self.mark_known(peer)
            return False
        return self.on_failed(peer, now, is_proxy=is_proxy)

    def on_failed(self, peer: str, now: float, *, is_proxy: bool) -> bool:
        """Count a call that ended before its caller was known. Returns whether its connection should be closed.

        That is so for some failures of an address that had many, unless a proxy or a known caller uses the connection.
        """
        excess = self._count_failure(peer.rpartition(":")[0], now) - self._max_failures
        if excess <= 0 or (excess - 1) % FAILURES_PER_CLOSE or is_proxy or peer in self._known:
            return False
        self.refused["CONNECTION_CLOSED"] += 1
        return True

    def _count_failure(self, address: str, now: float) -> int:
        """Return the failures of an address in the present window; 0 without a limit."""
        if not self._max_failures:
            return 0
        failures = self._failures.get(address)
        if failures is None or now - failures.since > self._window:
            self._failures.pop(address, None)
            failures = _Failures(now)
            _put(self._failures, address, failures)
        failures.count += 1
        return failures.count


def _put(entries: OrderedDict[str, Value], key: str, value: Value) -> None:
    entries[key] = value
    if len(entries) > MAX_TRACKED:
        entries.popitem(last=False)
