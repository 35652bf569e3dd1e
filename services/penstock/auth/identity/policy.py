"""Policies: the limits, budgets, allowed models and allowed regions that an operator sets for a tenant or for a key."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

MAX_NAMED_MODELS = 5  # of a list that an error shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a flow of requests. A limit of 0 means no limit."""

    requests_per_minute: int = 0
    input_tokens_per_minute: int = 0
    output_tokens_per_minute: int = 0
    tokens_per_minute: int = 0  # input and output
    concurrent_requests: int = 0


NO_LIMITS = Limits()


class BudgetPeriod(StrEnum):
    """A period of the calendar in UTC."""

    DAY = "day"
    MONTH = "month"


class BudgetUnit(StrEnum):
    """The unit in which a budget is counted."""

    TOKENS = "tokens"
    MONEY = "money"  # nanos: 1e-9 units of the operator's currency


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that may be spent in a period."""

    period: BudgetPeriod
    unit: BudgetUnit
    amount: int  # tokens or nanos, above 0

    @property
    def name(self) -> str:
        return f"{self.period}_{self.unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Restrictions of a tenant or a key, in addition to those of the columns of a tenant."""

    limits: Limits = NO_LIMITS
    allowed_models: tuple[str, ...] = ()  # exact names, or names with `*` at their end; empty: all
    model_limits: tuple[tuple[str, Limits], ...] = ()  # of a tenant only
    allowed_regions: tuple[str, ...] = ()  # of a tenant only; empty: all
    budgets: tuple[Budget, ...] = ()  # at most one of each period and unit
    soft_share: float = 0.0  # share of a budget from which admitted requests carry a warning; 0: none
    shadow: bool = False  # limits and budgets count the requests that they would refuse, and refuse none

    @property
    def is_metered(self) -> bool:
        """Whether a limit or a budget applies to all requests under the policy."""
        return self.limits != NO_LIMITS or bool(self.budgets)


NO_POLICY = Policy()


def allows_model(patterns: Iterable[str], model: str) -> bool:
    """Return whether a pattern allows the model: its exact name, or the beginning of the name before a last `*`."""
    return any(model.startswith(each[:-1]) if each.endswith("*") else each == model for each in patterns)


def named_models(patterns: Iterable[str]) -> str:
    """Return the patterns as text, at most `MAX_NAMED_MODELS` of them."""
    listed = sorted(patterns)
    more = f" and {len(listed) - MAX_NAMED_MODELS} more" if len(listed) > MAX_NAMED_MODELS else ""
    return ", ".join(listed[:MAX_NAMED_MODELS]) + more if listed else "none"
