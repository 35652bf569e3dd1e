"""Summary of rejections for the log: one line per interval, whatever the number of rejected tickets. Pure."""

import math
from collections import Counter
from typing import Any

from penstock.mesh.model_key import model_name
from penstock.queue.effects import Shed

INTERVAL_S = 10.0
MAX_TENANTS = 5  # of a line: those with the most rejected tickets


class ShedSummary:
    """Counts rejected tickets until the next line is due. `now` is in s on any clock."""

    def __init__(self) -> None:
        self._reasons: Counter[str] = Counter()
        self._models: Counter[str] = Counter()
        self._tenants: Counter[str] = Counter()
        self._logged_at = -math.inf  # s

    def record(self, shed: Shed) -> None:
        self._reasons[shed.error.reason] += 1
        if shed.ticket:
            self._models[model_name(shed.ticket.model)] += 1
            self._tenants[shed.ticket.tenant_id] += 1

    def pop_due(self, now: float) -> dict[str, Any] | None:
        """Return the fields of a line; None if none is due. The first rejection after a quiet time is due at once."""
        if not self._reasons or now < self._logged_at + INTERVAL_S:
            return None
        self._logged_at = now
        found = {
            "tickets": self._reasons.total(),
            "reasons": dict(self._reasons),
            "models": dict(self._models),
            "tenants": dict(self._tenants.most_common(MAX_TENANTS)),
            "other_tenants": max(0, len(self._tenants) - MAX_TENANTS),
        }
        for each in (self._reasons, self._models, self._tenants):
            each.clear()
        return found
