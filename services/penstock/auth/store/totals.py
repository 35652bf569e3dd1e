"""Hourly totals of usage: their columns, and what one charge adds. They are the same in every kind of store.

A charge is counted in the hour (UTC) in which it was settled, by the transaction that writes its row of the ledger.
"""

from typing import NamedTuple

from penstock.auth.quota.reservation import OUTCOME_LOST, Charge

HOUR_S, DAY_S = 3_600, 86_400
KEYS = ("tenant_id", "key_id", "model", "region")
TOTAL_KEY = ("tenant_id", "hour", "key_id", "model", "region")  # primary key of hourly totals, in its order
TOKENS = ("prompt_tokens", "cached_tokens", "output_tokens", "price_nanos")
OUTCOMES = ("completed", "cancelled", "shed", "failed", "lost")  # each charge has one; `requests` is their sum
COUNTERS = ("requests", *TOKENS, *OUTCOMES)
Counters = tuple[int, ...]  # in the order of COUNTERS


class RegionTotal(NamedTuple):
    """The total of an hour, tenant, key and model in one region. Its revision grows with each change."""

    hour: int  # Unix time of its beginning in s
    tenant_id: str
    key_id: str
    model: str
    counters: Counters
    revision: int


_COLUMN_OF_OUTCOME = {"stop": "completed", "length": "completed", "cancelled": "cancelled", "shed": "shed"}
# SQL of an outcome's column; `{outcome}` is a column or a value.
OUTCOME_CASES = {
    "completed": "outcome IN ('stop', 'length')",
    "cancelled": "outcome = 'cancelled'",
    "shed": "outcome = 'shed'",
    "failed": "outcome NOT IN ('stop', 'length', 'cancelled', 'shed', 'lost')",
    "lost": "outcome = 'lost'",
}
ADDITIONS = ", ".join(f"{each} = hourly_usage.{each} + excluded.{each}" for each in COUNTERS)
REPLACEMENTS = ", ".join(f"{each} = excluded.{each}" for each in (*COUNTERS, "revision"))
DAILY_ADDITIONS = ", ".join(f"{each} = daily_usage.{each} + excluded.{each}" for each in COUNTERS)


def outcome_column(outcome: str) -> str:
    return OUTCOME_LOST if outcome == OUTCOME_LOST else _COLUMN_OF_OUTCOME.get(outcome, "failed")


def hour_of(at: float) -> int:
    """Return the Unix time at which the hour of `at` begins."""
    return int(at // HOUR_S) * HOUR_S


def counters_of(charge: Charge) -> Counters:
    column = outcome_column(charge.outcome)
    tokens = (charge.prompt_tokens, charge.cached_tokens, charge.output_tokens, charge.price_nanos)
    return (1, *tokens, *(int(each == column) for each in OUTCOMES))


def late_counters_of(charge: Charge) -> Counters:
    """Return what the correction of a charge adds whose row is gone: its request was counted as lost."""
    return (0, *counters_of(charge)[1 : 1 + len(TOKENS)], *(0,) * len(OUTCOMES))
