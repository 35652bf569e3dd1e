"""Totals that one region reports to another, as statements of PostgreSQL."""

from collections.abc import Iterable, Iterator

from penstock.auth.store.postgres.documents import document, record_set
from penstock.auth.store.rows import Row
from penstock.auth.store.store import ConfirmTotals, PutTotals
from penstock.auth.store.totals import COUNTERS, REPLACEMENTS, TOTAL_KEY, RegionTotal

Statement = tuple[str, tuple[object, ...]]

_TYPES = ("text", "bigint", "text", "text", "text", *("bigint",) * len(COUNTERS), "bigint")
_KEY = ", ".join(TOTAL_KEY)
_COLUMNS = ", ".join((*TOTAL_KEY, *COUNTERS, "revision"))
_NEW = ", ".join(f"new.{each}" for each in TOTAL_KEY)
_OLD = ", ".join(f"old.{each}" for each in TOTAL_KEY)

# ruff: noqa: S608  # all parts of the statements are constants
# In the order of the key, as all statements that write totals.
_PUT = f"""
    INSERT INTO hourly_usage ({_COLUMNS})
    SELECT {", ".join(f"c{place}" for place in range(len(_TYPES)))} FROM {record_set(_TYPES)}
    ORDER BY {", ".join(f"c{place}" for place in range(len(TOTAL_KEY)))}
    ON CONFLICT ({_KEY}) DO UPDATE SET {REPLACEMENTS} WHERE excluded.revision > hourly_usage.revision
"""
# An insert could count a total twice that another transaction has just moved to its day.
_REPLACE = f"""
    WITH new ({_COLUMNS}) AS MATERIALIZED (SELECT rows.* FROM {record_set(_TYPES)})
    UPDATE hourly_usage AS old SET {", ".join(f"{each} = new.{each}" for each in (*COUNTERS, "revision"))}
    FROM new WHERE ({_OLD}) = ({_NEW}) AND old.revision < new.revision
"""
# A total that another transaction changes is skipped: it has another revision afterwards.
_CONFIRM = f"""
    WITH new ({_COLUMNS}) AS MATERIALIZED (SELECT rows.* FROM {record_set(_TYPES)}),
    found AS MATERIALIZED (
        SELECT {_OLD} FROM new JOIN hourly_usage AS old ON ({_OLD}) = ({_NEW}) AND old.revision = new.revision
        FOR NO KEY UPDATE OF old SKIP LOCKED
    )
    UPDATE hourly_usage AS old SET is_unreported = false FROM found AS new WHERE ({_OLD}) = ({_NEW})
"""


def statements(change: PutTotals | ConfirmTotals) -> Iterator[Statement]:
    if isinstance(change, ConfirmTotals):
        yield _CONFIRM, (_document(change.region, change.totals),)
        return
    recent = [each for each in change.totals if each.hour >= change.insert_from]
    if recent:
        yield _PUT, (_document(change.region, recent),)
    if late := [each for each in change.totals if each.hour < change.insert_from]:
        yield _REPLACE, (_document(change.region, late),)


def _document(region: str, totals: Iterable[RegionTotal]) -> str:
    return document(_row(region, each) for each in totals)


def _row(region: str, total: RegionTotal) -> Row:
    return (total.tenant_id, total.hour, total.key_id, total.model, region, *total.counters, total.revision)
