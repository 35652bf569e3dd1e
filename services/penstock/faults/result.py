"""The result of one world."""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.faults.checks.checker import Violation
from penstock.faults.grpc.network import Failpoint
from penstock.faults.plan import WorldPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldResult:
    """The result of one world."""

    plan: WorldPlan
    violations: tuple[Violation, ...]
    injected: tuple[str, ...]  # faults that were injected, as text
    frames_by_failpoint: Mapping[Failpoint, int]  # frames sent
    frame_digest: int  # equal for equal seeds under the same hash seed
    callbacks: int
    virtual_s: float  # virtual time that the world took, in s
    requests: int  # probes included
