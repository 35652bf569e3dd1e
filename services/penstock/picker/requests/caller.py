"""The caller of a request, from headers that the gateway sets: tenant, priority class and time limit."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.mesh.class_names import class_name
from penstock.v1.inference_pb2 import Priority

PRIORITIES = {class_name(each): each for each in Priority.values() if each}
MAX_TENANT_CHARS = 256
MAX_TIME_LIMIT_S = 86_400.0


class Caller(NamedTuple):
    """The caller of a request."""

    tenant: str  # empty: not stated; such requests share one turn
    priority: int
    weight: float
    time_limit: float  # s for the first token; 0: none


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerHeaders:
    """Names of the headers, in lower case, and what applies without them."""

    tenant: str = "x-gateway-inference-fairness-id"
    priority: str = "x-penstock-priority"
    time_limit: str = "x-request-timeout-ms"
    default_priority: int = Priority.PRIORITY_STANDARD
    weights: Mapping[str, float] = field(default_factory=dict)  # by tenant; 1 for others

    def read(self, headers: Mapping[str, str]) -> Caller:
        """Return the caller. A value that is not understood counts as absent: the gateway is trusted to set it."""
        tenant = headers.get(self.tenant, "")[:MAX_TENANT_CHARS]
        priority = PRIORITIES.get(headers.get(self.priority, "").lower(), self.default_priority)
        return Caller(tenant, priority, self.weights.get(tenant, 1.0), _seconds(headers.get(self.time_limit, "")))


def _seconds(text: str) -> float:
    try:
        value = float(text) / 1e3
    except ValueError:
        return 0.0
    return min(value, MAX_TIME_LIMIT_S) if math.isfinite(value) and value > 0 else 0.0
