"""What one refusal costs, out of what loads cost that differ in how many are refused. Pure.

Where more is refused, more is let in too, as smaller requests come: at eight times the load some 10 % more than at
three, of as many tokens together. That is taken out, by what one more costs where none is refused and tokens are the
same.
"""

from collections.abc import Mapping
from dataclasses import dataclass

US_PER_S = 1e6  # in a second


@dataclass(frozen=True, slots=True)
class LoadCost:
    """What tiers did in one load, and their CPU time for it, in s."""

    rejected: float
    admitted: float
    cpu_s: Mapping[str, float]

    @property
    def total_cpu_s(self) -> float:
        return sum(self.cpu_s.values())


def mean_cost(one: LoadCost, other: LoadCost) -> LoadCost:
    """Return what would have been spent between two loads, while the machine's pace drifts."""
    cpu = {tier: (one.cpu_s[tier] + other.cpu_s[tier]) / 2 for tier in one.cpu_s}
    return LoadCost((one.rejected + other.rejected) / 2, (one.admitted + other.admitted) / 2, cpu)


def cpu_s_per_admitted(few: LoadCost, many: LoadCost) -> dict[str, float]:
    """Return the s of CPU by tier of one more request let in, where `many` have as many tokens together as `few`."""
    more = max(1.0, many.admitted - few.admitted)
    return {tier: (spent - few.cpu_s[tier]) / more for tier, spent in many.cpu_s.items()}


def cpu_us_per_rejected(less: LoadCost, more: LoadCost, cpu_s_per_admission: Mapping[str, float]) -> dict[str, float]:
    """Return the us of CPU by tier of one more refusal; `let_in` as by `of_one_let_in`, empty: nothing is taken out."""
    refused, others = max(1.0, more.rejected - less.rejected), more.admitted - less.admitted
    return {
        tier: US_PER_S * (spent - less.cpu_s[tier] - others * cpu_s_per_admission.get(tier, 0.0)) / refused
        for tier, spent in more.cpu_s.items()
    }
