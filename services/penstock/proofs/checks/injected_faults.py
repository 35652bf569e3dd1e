"""Faults that were made, and whether a run with them proves anything. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """One fault. Times are Unix s."""

    name: str  # of the process
    kind: str  # SIGKILL, SIGTERM or SIGSTOP
    injected_at: float
    recovered_at: float  # when it served again
    has_taken_effect: bool  # the process was gone, or stood still
    active_requests: int  # requests at that moment
    tokens_before: int  # that clients got from the fault before, or the beginning, up to this one

    def overlaps(self, started_at: float, ended_at: float) -> bool:
        """Whether a request under way from `started` to `ended` could have noticed."""
        return started_at < self.recovered_at and ended_at > self.injected_at


def void_reason(faults: Sequence[InjectedFault], expected: int, streams: int) -> str:
    """Why the run proves nothing; empty when it does.

    Load was really offered only if at each fault at least half of the streams were under way and tokens had flowed.
    """
    happened = sum(each.has_taken_effect for each in faults)
    if happened < expected:
        return f"only {happened} of {expected} faults really happened"
    for each in faults:
        if each.active_requests * 2 < streams:
            return f"{each.active_requests} of {streams} streams were under way when {each.name} was hit"
        if not each.tokens_before:
            return f"no token flowed before {each.name} was hit"
    return ""
