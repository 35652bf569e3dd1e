"""Faults that were made, and whether a run with them proves anything. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. Times are Unix s."""

    name: str  # of the process
    kind: str  # SIGKILL, SIGTERM or SIGSTOP
    at: float
    back_at: float  # when it served again
    has_happened: bool  # the process was gone, or stood still
    under_way: int  # requests at that moment
    tokens: int  # that clients got from the fault before, or the beginning, up to this one

    def covers(self, started: float, ended: float) -> bool:
        """Whether a request under way from `started` to `ended` could have noticed."""
        return started < self.back_at and ended > self.at


def void_because(faults: Sequence[Fault], wanted: int, streams: int) -> str:
    """Why the run proves nothing; empty when it does.

    Load was really offered only if at each fault at least half of the streams were under way and tokens had flowed.
    """
    happened = sum(each.has_happened for each in faults)
    if happened < wanted:
        return f"only {happened} of {wanted} faults really happened"
    for each in faults:
        if each.under_way * 2 < streams:
            return f"{each.under_way} of {streams} streams were under way when {each.name} was hit"
        if not each.tokens:
            return f"no token flowed before {each.name} was hit"
    return ""
