"""Policy of claims: the batches whose chunks a replica claims next. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

MIN_SECONDS_LEFT = 1.0  # of a window, so that one that ends now has a finite urgency


@dataclass(slots=True)
class RunningBatch:
    """A batch whose lines run."""

    number: int
    tenant_id: str
    lines_left: int  # without a result
    seconds_left: float  # of its window
    lines_per_s: float  # so far; 0: not known
    held: int  # chunks that replicas have

    @property
    def urgency(self) -> float:
        """Lines per second that it needs to end in its window."""
        return self.lines_left / max(self.seconds_left, MIN_SECONDS_LEFT)

    @property
    def is_at_risk(self) -> bool:
        """Whether its window ends before its lines at the speed so far."""
        return 0.0 < self.lines_per_s < self.urgency


def shares(running: Sequence[RunningBatch], limit: int) -> dict[int, int]:
    """Return how many chunks to claim of each batch, by its number, `limit` together.

    Tenants with batches have as many chunks at work, so the one with the fewest is next. Of its batches, those at risk
    go first, the most urgent one before; without one at risk, the batch with the fewest chunks at work, so that a short
    batch need not wait for a long one.
    """
    held_by_tenant: dict[str, int] = {}
    for each in running:
        held_by_tenant[each.tenant_id] = held_by_tenant.get(each.tenant_id, 0) + each.held
    added: dict[int, int] = {}

    def place(batch: RunningBatch) -> tuple[int, float, int, float]:
        urgency = batch.urgency if batch.is_at_risk else 0.0
        return held_by_tenant[batch.tenant_id], -urgency, batch.held + added.get(batch.number, 0), batch.seconds_left

    for _ in range(limit if running else 0):
        chosen = min(running, key=place)
        held_by_tenant[chosen.tenant_id] += 1
        added[chosen.number] = added.get(chosen.number, 0) + 1
    return added
