"""Calls of unidentified callers, by connection: how many may wait for auth, and which connections only do harm."""

from collections import Counter, OrderedDict
from dataclasses import dataclass

from penstock.chassis.errors import Overloaded

RETRY_AFTER_S = 1.0
MAX_TRACKED = 10_000  # connections with calls of unidentified callers; those with the oldest calls are forgotten first


@dataclass(slots=True)
class _Connection:
    waiting: int = 0  # calls whose caller auth is being asked about
    failures: int = 0  # refused or cancelled before their caller was known, in the present window
    window_since: float = 0.0
    is_identified: bool = False  # whether some call on it had a known caller


class UnidentifiedCalls:
    """Counts calls by connection from their arrival until their caller is known. Known callers do not count."""

    def __init__(self, *, max_waiting: int, max_failures: int, window: float) -> None:
        self._max_waiting = max_waiting  # of one connection; 0: no limit
        self._max_failures = max_failures  # of one connection within the window; 0: no limit
        self._window = window  # s
        self._connections: OrderedDict[str, _Connection] = OrderedDict()
        self.refused = Counter[str]()  # by reason

    def __repr__(self) -> str:
        return f"<UnidentifiedCalls of {len(self._connections)} connections>"

    def begin(self, peer: str, *, is_proxy: bool) -> None:
        """Count a call. Raises Overloaded, and counts nothing, if too many wait on the connection of a client."""
        connection = self._connections.get(peer)
        if connection is None:
            connection = self._connections[peer] = _Connection()
            if len(self._connections) > MAX_TRACKED:
                self._connections.popitem(last=False)
        else:
            self._connections.move_to_end(peer)
        if 0 < self._max_waiting <= connection.waiting and not is_proxy:
            self.refused["CALLERS_UNIDENTIFIED"] += 1
            text = f"{connection.waiting} calls on this connection wait for their key to be checked"
            raise Overloaded(
                f"{text}; retry in {RETRY_AFTER_S:g} s", reason="CALLERS_UNIDENTIFIED", retry_after=RETRY_AFTER_S
            )
        connection.waiting += 1

    def end(self, peer: str, now: float, *, is_identified: bool, is_proxy: bool) -> bool:
        """Uncount a call. Returns whether the connection should be closed: it had many failures and no known caller."""
        connection = self._connections.get(peer)
        if connection is None:
            return False
        connection.waiting = max(0, connection.waiting - 1)
        if is_identified:
            connection.is_identified = True
            return False
        if now - connection.window_since > self._window:
            connection.window_since, connection.failures = now, 0
        connection.failures += 1
        if is_proxy or connection.is_identified or not 0 < self._max_failures < connection.failures:
            return False
        self.refused["CONNECTION_CLOSED"] += 1
        del self._connections[peer]
        return True
