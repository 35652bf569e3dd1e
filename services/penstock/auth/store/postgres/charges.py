"""Reservations and charges of a batch as a few statements, each with many rows."""

from collections.abc import Iterable, Iterator

from penstock.auth.store import rows
from penstock.auth.store.postgres.documents import document, record_set, selected
from penstock.auth.store.postgres.ledger_rows import CHARGES, UNREPORTED_CHARGES
from penstock.auth.store.rows import Row
from penstock.auth.store.store import Charged, PutShare, Reserved
from penstock.mesh.partitions import partition_of

Statement = tuple[str, tuple[object, ...]]

_TEXTS, _INTEGERS, _TIMES = ("text",) * 6, ("bigint",) * 2, ("float8",) * 2
_OF_ANSWER = ("text", "bigint", "bytea")
RESERVATION_TYPES = (*_TEXTS, *_INTEGERS, *_TIMES, *_OF_ANSWER, "smallint", "boolean", "bigint", "smallint")
BALANCE_TYPES = ("text", *("bigint",) * 5, "smallint")
SCOPE_USE_TYPES = ("text", "text", *("bigint",) * 4, "float8", *("bigint",) * 6, "smallint")
SHARE_TYPES = ("text", "text", "text", "integer", "integer", "smallint")
GRANT_USE_TYPES = ("bytea", "text", "text", "bigint", "bigint", "float8", "smallint")
_BALANCE_COLUMNS = f"{rows.BALANCE_COLUMNS}, partition".split(", ")
_SCOPE_USE_COLUMNS = f"{rows.SCOPE_USE_COLUMNS}, partition".split(", ")
_GRANT_USE_COLUMNS = f"{rows.GRANT_USE_COLUMNS}, partition".split(", ")


def _replacements(columns: Iterable[str]) -> str:
    return ", ".join(f"{each} = excluded.{each}" for each in columns)


# ruff: noqa: S608  # all parts of the statements are constants
_INSERT_RESERVATIONS = f"""
    INSERT INTO reservations ({rows.PRICED_RESERVATION_COLUMNS}, partition)
    SELECT {selected(RESERVATION_TYPES)} FROM {record_set(RESERVATION_TYPES)}
    ON CONFLICT DO NOTHING
"""
_DELETE_RESERVATIONS = "DELETE FROM reservations WHERE reservation_id = ANY(%s)"
_PUT_BALANCES = f"""
    INSERT INTO balances SELECT {selected(BALANCE_TYPES)} FROM {record_set(BALANCE_TYPES)}
    ON CONFLICT (tenant_id) DO UPDATE SET {_replacements(_BALANCE_COLUMNS[1:])}
"""
_PUT_SCOPE_USES = f"""
    INSERT INTO scope_uses SELECT {selected(SCOPE_USE_TYPES)} FROM {record_set(SCOPE_USE_TYPES)}
    ON CONFLICT (tenant_id, scope) DO UPDATE SET {_replacements(_SCOPE_USE_COLUMNS[2:])}
"""
_PUT_SHARES = f"""
    INSERT INTO region_shares SELECT {selected(SHARE_TYPES)} FROM {record_set(SHARE_TYPES)}
    ON CONFLICT (tenant_id, scope, region) DO UPDATE SET rates = excluded.rates, budgets = excluded.budgets
"""
_FORGET_GRANT_USES = "DELETE FROM grant_uses WHERE forget_at < %s"
_PUT_GRANT_USES = f"""
    INSERT INTO grant_uses SELECT {selected(GRANT_USE_TYPES)} FROM {record_set(GRANT_USE_TYPES)}
    ON CONFLICT (grant_id, request_id) DO UPDATE SET {_replacements(_GRANT_USE_COLUMNS[2:])}
"""


class ChargeRun:
    """Reservations, charges and shares that follow each other. Of rows with one key, the last one is written."""

    def __init__(self) -> None:
        self._reserved: dict[str, Row] = {}
        self._ended: list[str] = []  # reservation ids
        self._charged: dict[str, Row] = {}
        self._corrected: dict[str, Row] = {}
        self._balances: dict[str, Row] = {}
        self._scope_uses: dict[tuple[str, str], Row] = {}
        self._shares: dict[tuple[str, str, str], Row] = {}
        self._grant_uses: dict[tuple[bytes, str], Row] = {}
        self._forget_before = 0.0  # s

    def add(self, change: Reserved | Charged | PutShare) -> None:
        partition = partition_of(change.balance.tenant_id)
        self._balances[change.balance.tenant_id] = (*change.balance, partition)
        for scope_use in change.scope_uses:
            self._scope_uses[scope_use.tenant_id, scope_use.scope] = (*scope_use, partition)
        if isinstance(change, PutShare):
            self._shares[change.row[:3]] = (*change.row, partition)
            return
        if isinstance(change, Reserved):
            reservation, now = change.reservation, change.reservation.reserved_at
            self._reserved[reservation.reservation_id] = (*rows.reservation_row(reservation), partition)
        else:
            charge, now = change.charge, change.charge.settled_at
            reservation_id = charge.reservation.reservation_id
            if self._reserved.pop(reservation_id, None) is None:
                self._ended.append(reservation_id)
            is_in_total = charge.is_correction and reservation_id not in self._charged  # or in the ledger
            charges = self._corrected if is_in_total else self._charged
            charges[reservation_id] = (*rows.charge_row(charge), partition)
        if use := change.grant_use:
            self._grant_uses[use.grant_id, use.request_id] = (*use, partition)
            self._forget_before = max(self._forget_before, now)

    def statements(self, *, reports_usage: bool = False) -> Iterator[Statement]:
        charging = UNREPORTED_CHARGES if reports_usage else CHARGES
        if self._reserved:
            yield _INSERT_RESERVATIONS, (document(self._reserved.values()),)
        if self._ended:
            yield _DELETE_RESERVATIONS, (self._ended,)
        if self._charged:
            yield charging.put, (document(self._charged.values()),)
        if self._corrected:
            yield charging.correct, (document(self._corrected.values()),)
        if self._balances:
            yield _PUT_BALANCES, (document(self._balances.values()),)
        if self._scope_uses:
            yield _PUT_SCOPE_USES, (document(self._scope_uses.values()),)
        if self._shares:
            yield _PUT_SHARES, (document(self._shares.values()),)
        if self._grant_uses:
            yield _FORGET_GRANT_USES, (self._forget_before,)
            yield _PUT_GRANT_USES, (document(self._grant_uses.values()),)
