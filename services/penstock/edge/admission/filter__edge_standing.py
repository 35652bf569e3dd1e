"""What a caller is at this edge: worked out for every call of its own, and for a session once in a while."""

from collections.abc import Callable
from typing import NamedTuple

from penstock.edge.admission.rejection_cache import TrafficClass

CALLER_CLASS_TTL_S = 0.1  # s


class CallerClass(NamedTuple):
    """Of one caller that asks for one class of one model."""

    traffic_class: TrafficClass
    weight: float  # of its tenant
    key_id: str
    context_length: int  # tokens, of the model


class CallerClassCache:
    """Of one session's caller, by what it asks for; it goes with the session, as its key does."""

    def __init__(self) -> None:
        self._expires_at = 0.0  # s
        self._classes: dict[tuple[int, str], CallerClass] = {}

    def find(
        self, priority: int, model: str, now: float, compute: Callable[[], CallerClass | None]
    ) -> CallerClass | None:
        """Return what was worked out a moment ago, or is now; None, which is never kept, where that cannot be."""
        if now >= self._expires_at:
            self._classes.clear()
            self._expires_at = now + CALLER_CLASS_TTL_S
        found = self._classes.get((priority, model))
        if found is None and (found := compute()):
            self._classes[priority, model] = found
        return found
