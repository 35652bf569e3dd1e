"""What a caller is at this edge: worked out for every call of its own, and for a session once in a while."""

from collections.abc import Callable
from typing import NamedTuple

from penstock.edge.refusals import Kind

KEPT = 0.1  # s


class Standing(NamedTuple):
    """Of one caller that asks for one class of one model."""

    kind: Kind
    weight: float  # of its tenant
    key_id: str
    context_length: int  # tokens, of the model


class Standings:
    """Of one session's caller, by what it asks for; it goes with the session, as its key does."""

    def __init__(self) -> None:
        self._kept_until = 0.0  # s
        self._known: dict[tuple[int, str], Standing] = {}

    def find(self, priority: int, model: str, now: float, work_out: Callable[[], Standing | None]) -> Standing | None:
        """Return what was worked out a moment ago, or is now; None, which is never kept, where that cannot be."""
        if now >= self._kept_until:
            self._known.clear()
            self._kept_until = now + KEPT
        found = self._known.get((priority, model))
        if found is None and (found := work_out()):
            self._known[priority, model] = found
        return found
