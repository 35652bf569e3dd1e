"""Tenants: the priority class, weight and limits of a customer."""

import re
from dataclasses import dataclass

from penstock.auth.identity.policy import NO_POLICY, Policy
from penstock.v1.inference_pb2 import PRIORITY_STANDARD, Priority

DEFAULT_TENANT = "default"
TENANT_ID_FORMAT = re.compile(r"[a-z0-9-]{1,63}")
WEIGHT_BOUNDS = (0.01, 1_000.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A tenant as the operator has set it. A limit of 0 means no limit."""

    tenant_id: str
    priority: "Priority.ValueType" = PRIORITY_STANDARD
    weight: float = 1.0
    requests_per_minute: int = 0
    tokens_per_minute: int = 0  # prompt and output, as reserved
    concurrent_requests: int = 0
    policy: Policy = NO_POLICY  # its other limits, its budgets and models

    def effective_priority(self, requested: "Priority.ValueType") -> "Priority.ValueType":
        """Return the lower class of the tenant's and the requested one. A higher number is a lower class."""
        return max(self.priority, requested)
