"""Faults that were injected, and whether a run with them proves anything. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class InjectedFault:
    """One fault. Times are Unix s."""

    name: str  # of the process
    kind: str  # SIGKILL, SIGTERM, SIGSTOP, or the direction of a cut
    injected_at: float
    recovered_at: float = 0.0  # when the process served again
    has_taken_effect: bool = False  # the process was dead or stopped, or the link was silent
    active_requests: int  # at the time of the fault
    tokens_before: int  # received by clients between the fault before, or the start, and this one

    @property
    def tier(self) -> str:
        return self.name.partition("-")[0]

    def overlaps(self, started_at: float, ended_at: float) -> bool:
        """Whether a request active from `started_at` to `ended_at` could have been affected."""
        return started_at < self.recovered_at and ended_at > self.injected_at


def void_reason(faults: Sequence[InjectedFault], expected: int, streams: int) -> str:
    """Return the reason why the run proves nothing; empty if it is valid.

    The load was real only if at each fault at least half of the streams were active and tokens had been received.
    """
    effective = sum(fault.has_taken_effect for fault in faults)
    if effective < expected:
        return f"only {effective} of {expected} faults took effect"
    for fault in faults:
        if fault.active_requests * 2 < streams:
            return f"{fault.active_requests} of {streams} streams were active when {fault.name} was hit"
        if not fault.tokens_before:
            return f"no token was received before {fault.name} was hit"
    return ""
