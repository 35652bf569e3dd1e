"""Labels of tenants in metrics: the busiest tenants have one of their own, all others share `other`. Pure."""

from collections.abc import Callable
from heapq import nlargest

OTHER = "other"
MAX_LABELS = 20
RANKED_EVERY = 4_096  # events between two rankings
KEPT_SHARE = 0.5  # of the counts of earlier events, at a ranking
ENTRY_FACTOR = 1.5  # by which a tenant must exceed the least busy labelled one to replace it, against alternation
MAX_COUNTED = 4_096  # tenants


class TenantLabels:
    """Counts the events of tenants and returns their labels.

    A tenant that loses its label is reported to `on_removed`, which removes its series: each series that a process
    exports is then of one tenant, and a later return of the tenant begins it at 0, as after a restart.
    """

    def __init__(self, on_removed: Callable[[str], object] = lambda _: None) -> None:
        self._counts: dict[str, float] = {}  # by tenant
        self._labelled: set[str] = set()
        self._events = 0  # since the last ranking
        self._on_removed = on_removed

    def __repr__(self) -> str:
        return f"<TenantLabels {len(self._labelled)} of {len(self._counts)} tenants>"

    @property
    def labelled(self) -> tuple[str, ...]:
        """The tenants that have a label of their own."""
        return tuple(self._labelled)

    def record(self, tenant: str) -> str:
        """Count an event of a tenant and return its label. The empty name, of an unknown caller, is its own label."""
        if not tenant:
            return ""
        self._counts[tenant] = self._counts.get(tenant, 0.0) + 1.0
        self._events += 1
        if self._events >= RANKED_EVERY:
            self._rank()
        elif len(self._labelled) < MAX_LABELS:
            self._labelled.add(tenant)
        return self.label_of(tenant)

    def label_of(self, tenant: str) -> str:
        """Return the label of a tenant without counting an event."""
        return tenant if not tenant or tenant in self._labelled else OTHER

    def _rank(self) -> None:
        self._events = 0
        candidates = [each for each in nlargest(MAX_LABELS, self._counts, self._weight) if each not in self._labelled]
        for tenant in candidates:
            if len(self._labelled) >= MAX_LABELS:
                least = min(self._labelled, key=self._weight)
                if self._weight(tenant) <= ENTRY_FACTOR * self._weight(least):
                    break
                self._labelled.remove(least)
                self._on_removed(least)
            self._labelled.add(tenant)
        kept = nlargest(MAX_COUNTED, self._counts, self._weight)
        self._counts = {each: count for each in kept if (count := KEPT_SHARE * self._weight(each)) >= KEPT_SHARE}

    def _weight(self, tenant: str) -> float:
        return self._counts.get(tenant, 0.0)
