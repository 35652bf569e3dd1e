"""Contention: how many tenants of a class wait, as a mean over the last seconds.

A tenant whose tickets have all been taken often sends more before the tickets that wait now have their turn, and then
goes before them. So tenants count that waited recently, and not only those that wait now.
"""

import math
from dataclasses import dataclass

TIME_CONSTANT_S = 3.0  # s; tenants that pause for less are expected to return


@dataclass(slots=True)
class Contention:
    """Time average of the number of waiting tenants of one class."""

    mean_tenants: float = 0.0
    _updated_at: float = -math.inf

    def record(self, tenants: int, now: float) -> None:
        if now > self._updated_at:
            gain = -math.expm1((self._updated_at - now) / TIME_CONSTANT_S)
            self.mean_tenants += (tenants - self.mean_tenants) * gain
            self._updated_at = now

    def absent_share(self, tenants: int) -> float:
        """Return how many tenants are expected to return, as a share of the `tenants` that wait now."""
        return max(0.0, self.mean_tenants / tenants - 1) if tenants else 0.0
