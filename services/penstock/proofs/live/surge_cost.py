"""What one refusal costs, out of what loads cost that differ in how many are refused. Pure.

Where more is refused, more is let in too, as smaller requests come: at eight times the load some 10 % more than at
three, of as many tokens together. That is taken out, by what one more costs where none is refused and tokens are the
same.
"""

from collections.abc import Mapping
from dataclasses import dataclass

US = 1e6  # in a second


@dataclass(frozen=True, slots=True)
class Spent:
    """What tiers did in one load, and their CPU time for it, in s."""

    refused: float
    let_in: float
    cpu: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.cpu.values())


def between(one: Spent, other: Spent) -> Spent:
    """Return what would have been spent between two loads, while the machine's pace drifts."""
    cpu = {tier: (one.cpu[tier] + other.cpu[tier]) / 2 for tier in one.cpu}
    return Spent((one.refused + other.refused) / 2, (one.let_in + other.let_in) / 2, cpu)


def of_one_let_in(few: Spent, many: Spent) -> dict[str, float]:
    """Return the s of CPU by tier of one more request let in, where `many` have as many tokens together as `few`."""
    more = max(1.0, many.let_in - few.let_in)
    return {tier: (spent - few.cpu[tier]) / more for tier, spent in many.cpu.items()}


def of_one_refused(less: Spent, more: Spent, let_in: Mapping[str, float]) -> dict[str, float]:
    """Return the us of CPU by tier of one more refusal; `let_in` as by `of_one_let_in`, empty: nothing is taken out."""
    refused, others = max(1.0, more.refused - less.refused), more.let_in - less.let_in
    return {
        tier: US * (spent - less.cpu[tier] - others * let_in.get(tier, 0.0)) / refused
        for tier, spent in more.cpu.items()
    }
