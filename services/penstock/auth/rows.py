"""Changes as SQL and rows as values: all that is known of the tables beside their schema."""

import sqlite3
from typing import Any

from penstock.auth.account import Balance
from penstock.auth.accounts import MAX_LOST
from penstock.auth.keys import Key
from penstock.auth.reservation import Ask, Charge, Reservation
from penstock.auth.store import Barrier, Books, Change, Charged, PutKey, PutTenant, Reserved
from penstock.auth.tenant import Tenant

_PUT_TENANT = "INSERT OR REPLACE INTO tenants VALUES (?, ?, ?, ?, ?, ?)"
_PUT_KEY = "INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?, ?, ?, ?)"
_PUT_BALANCE = "INSERT OR REPLACE INTO balances VALUES (?, ?, ?, ?, ?, ?)"
_RESERVE = "INSERT INTO reservations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_FREE = "DELETE FROM reservations WHERE reservation_id = ?"
_CHARGE = "INSERT OR REPLACE INTO ledger VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # replaces a lost one
_LOST = f"""
    SELECT reservation_id, request_id, tenant_id, key_id, edge_id, model, reserved_prompt_tokens,
           reserved_output_tokens, reserved_at, expires_at
    FROM ledger WHERE outcome = 'lost' ORDER BY settled_at DESC LIMIT {MAX_LOST}
"""  # noqa: S608  # a number of our own


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
    lost = [_reservation(row) for row in connection.execute(_LOST)]
    return Books(
        tenants=[_tenant(row) for row in connection.execute("SELECT * FROM tenants")],
        balances={row[0]: Balance(*row) for row in connection.execute("SELECT * FROM balances")},
        keys=[_key(row) for row in connection.execute("SELECT * FROM keys")],
        reservations=[_reservation(row) for row in connection.execute("SELECT * FROM reservations")],
        lost=lost[::-1],
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
    ask = reservation.ask
    return (
        reservation.reservation_id,
        *(ask.request_id, ask.tenant_id, ask.key_id, ask.edge_id, ask.model),
        *(ask.prompt_tokens, ask.max_output_tokens),
        *(reservation.reserved_at, reservation.expires_at),
    )


def _reservation(row: tuple[Any, ...]) -> Reservation:
    names = ("request_id", "tenant_id", "key_id", "edge_id", "model", "prompt_tokens", "max_output_tokens")
    ask = Ask(**dict(zip(names, row[1:8], strict=True)))
    return Reservation(reservation_id=row[0], ask=ask, reserved_at=row[8], expires_at=row[9])


def _of_charge(charge: Charge) -> tuple[object, ...]:
    spent = (charge.settled_at, charge.prompt_tokens, charge.output_tokens, charge.outcome)
    return (*_of_reservation(charge.reservation), *spent)
