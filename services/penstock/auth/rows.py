"""Changes as SQL and rows as values: all that is known of the tables beside their schema."""

import sqlite3
from dataclasses import replace
from typing import Any

from penstock.auth.account import Balance
from penstock.auth.accounts import MAX_LOST
from penstock.auth.answers import MAX_ANSWERS
from penstock.auth.keys import Key
from penstock.auth.reservation import LOST, Ask, Charge, Reservation
from penstock.auth.store import Barrier, Books, Change, Charged, PutKey, PutTenant, Reserved
from penstock.auth.tenant import Tenant

_PUT_TENANT = "INSERT OR REPLACE INTO tenants VALUES (?, ?, ?, ?, ?, ?)"
_PUT_KEY = "INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?, ?, ?, ?)"
_PUT_BALANCE = "INSERT OR REPLACE INTO balances VALUES (?, ?, ?, ?, ?, ?)"
_RESERVE = "INSERT INTO reservations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_FREE = "DELETE FROM reservations WHERE reservation_id = ?"
_CHARGE = "INSERT OR REPLACE INTO ledger VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # over a lost
_RESERVED = """
    reservation_id, request_id, tenant_id, key_id, edge_id, model, reserved_prompt_tokens, reserved_output_tokens,
    reserved_at, expires_at, answer_id, emitted_tokens, fingerprint
"""
_LOST = f"SELECT {_RESERVED} FROM ledger WHERE outcome = 'lost' ORDER BY settled_at DESC LIMIT {MAX_LOST}"  # noqa: S608  # of our own
_LATEST = f"""
    SELECT {_RESERVED}, settled_at, prompt_tokens, output_tokens, outcome, made_tokens
    FROM ledger ORDER BY settled_at DESC LIMIT {MAX_ANSWERS}
"""  # noqa: S608  # as above


def apply(connection: sqlite3.Connection, change: Change) -> None:
    match change:
        case PutTenant(tenant):
            connection.execute(_PUT_TENANT, _of_tenant(tenant))
        case PutKey(key):
            connection.execute(_PUT_KEY, _of_key(key))
        case Reserved(reservation, balance):
            connection.execute(_RESERVE, _of_reservation(reservation))
            connection.execute(_PUT_BALANCE, balance)
        case Charged(charge, balance):
            connection.execute(_FREE, (charge.reservation.reservation_id,))
            connection.execute(_CHARGE, _of_charge(charge))
            connection.execute(_PUT_BALANCE, balance)
        case Barrier():
            pass


def read(connection: sqlite3.Connection) -> Books:
    lost = [_charged_reservation(row) for row in connection.execute(_LOST)]
    latest = [_charge(row) for row in connection.execute(_LATEST)]
    return Books(
        tenants=[_tenant(row) for row in connection.execute("SELECT * FROM tenants")],
        balances={row[0]: Balance(*row) for row in connection.execute("SELECT * FROM balances")},
        keys=[_key(row) for row in connection.execute("SELECT * FROM keys")],
        reservations=[_reservation(row) for row in connection.execute("SELECT * FROM reservations")],
        lost=lost[::-1],
        charged=[each for each in reversed(latest) if each.outcome != LOST],
    )


def _of_tenant(tenant: Tenant) -> tuple[object, ...]:
    limits = (tenant.requests_per_minute, tenant.tokens_per_minute, tenant.concurrent_requests)
    return (tenant.tenant_id, tenant.priority, tenant.weight, *limits)


def _tenant(row: tuple[Any, ...]) -> Tenant:
    names = ("tenant_id", "priority", "weight", "requests_per_minute", "tokens_per_minute", "concurrent_requests")
    return Tenant(**dict(zip(names, row, strict=True)))


def _of_key(key: Key) -> tuple[object, ...]:
    times = (key.created_at, key.display_name, key.expires_at, key.revoked_at)
    return (key.key_id, key.tenant_id, key.digest, *times)


def _key(row: tuple[Any, ...]) -> Key:
    names = ("key_id", "tenant_id", "digest", "created_at", "display_name", "expires_at", "revoked_at")
    return Key(**dict(zip(names, row, strict=True)))


def _of_reservation(reservation: Reservation) -> tuple[object, ...]:
    return _row(reservation, reservation.ask.max_output_tokens)


def _row(reservation: Reservation, output_tokens: int) -> tuple[object, ...]:
    ask = reservation.ask
    return (
        reservation.reservation_id,
        *(ask.request_id, ask.tenant_id, ask.key_id, ask.edge_id, ask.model),
        *(ask.prompt_tokens, output_tokens),
        *(reservation.reserved_at, reservation.expires_at),
        *(ask.answer_id, ask.emitted_tokens, ask.fingerprint),
    )


def _reservation(row: tuple[Any, ...]) -> Reservation:
    names = ("request_id", "tenant_id", "key_id", "edge_id", "model", "prompt_tokens", "max_output_tokens")
    of_answer = ("answer_id", "emitted_tokens", "fingerprint")
    ask = Ask(**dict(zip((*names, *of_answer), (*row[1:8], *row[10:13]), strict=True)))
    return Reservation(reservation_id=row[0], ask=ask, reserved_at=row[8], expires_at=row[9])


def _charged_reservation(row: tuple[Any, ...]) -> Reservation:
    """The ledger says of output the most that could be charged, emitted tokens included."""
    found = _reservation(row)
    beyond = found.ask.most_output_tokens - found.ask.max_output_tokens
    return replace(found, ask=replace(found.ask, max_output_tokens=found.ask.max_output_tokens - beyond))


def _of_charge(charge: Charge) -> tuple[object, ...]:
    reserved = _row(charge.reservation, charge.reservation.ask.most_output_tokens)
    spent = (charge.settled_at, charge.prompt_tokens, charge.output_tokens, charge.outcome)
    return (*reserved[:10], *spent, *reserved[10:], charge.made_tokens)


def _charge(row: tuple[Any, ...]) -> Charge:
    names = ("settled_at", "prompt_tokens", "output_tokens", "outcome", "made_tokens")
    return Charge(reservation=_charged_reservation(row), **dict(zip(names, row[13:], strict=True)))
