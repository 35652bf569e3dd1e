"""The lease of a replica on its partitions. No clock, no I/O; `now` is s of this process's own monotonic clock."""

import math
from dataclasses import dataclass

LEASE_TTL_S = 1.5  # s; other replicas take over after this time without a renewal
RENEWAL_INTERVAL_S = 0.35  # s


@dataclass
class PartitionLease:
    """When to renew a lease, and until when it certainly lasts.

    The database counts the lease from the time at which it runs the renewal. This class counts it from the time at
    which the renewal was sent, which is earlier, so that the lease never lasts longer here than there. A renewal whose
    answer is missing counts as not made.
    """

    ttl: float = LEASE_TTL_S
    renewal_interval: float = RENEWAL_INTERVAL_S
    _granted_at: float = -math.inf  # s; when the latest renewal that was confirmed was sent

    def __post_init__(self) -> None:
        if not 0 < self.renewal_interval < self.ttl:
            raise ValueError("a lease must be renewed more often than it ends")

    @property
    def expires_at(self) -> float:
        return self._granted_at + self.ttl

    @property
    def renewal_due(self) -> float:
        return self._granted_at + self.renewal_interval

    def on_renewed(self, sent_at: float) -> None:
        """Count a renewal that the database confirmed."""
        self._granted_at = max(self._granted_at, sent_at)

    def is_renewal_due(self, now: float) -> bool:
        return now >= self.renewal_due

    def has_lapsed(self, now: float) -> bool:
        """Return whether another process may have taken over."""
        return now >= self.expires_at
