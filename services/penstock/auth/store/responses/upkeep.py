"""Upkeep of stored responses in slices: their time to live, late cancels, and responses of deleted tenants."""

from penstock.auth.store.responses import statements as sql
from penstock.auth.store.responses.locked import LockedResponses
from penstock.auth.store.responses.statements import response_of
from penstock.chassis.database.statements import Row, Transaction

SLICE_RESPONSES = 16  # of one transaction


def run_slice(transaction: Transaction) -> bool:
    """Cancel some responses whose holder is late, or delete some whose time has ended. Return whether more may be due.

    A response in progress lives as long as its lease.
    """
    now = transaction.now
    if lapsed := transaction.run(sql.LAPSED, now, SLICE_RESPONSES):
        locked = LockedResponses(transaction)
        for each in map(response_of, lapsed):
            each.lapse(now)
            locked.end(each)
        locked.write()
        return True
    expired = transaction.run(sql.EXPIRED, now, now, SLICE_RESPONSES)
    _delete(transaction, expired)
    return len(expired) == SLICE_RESPONSES


def delete_of_tenant(transaction: Transaction, tenant_id: str) -> bool:
    """Delete some responses of a tenant. Return whether it has more."""
    rows = transaction.run(sql.OF_TENANT, tenant_id, SLICE_RESPONSES)
    _delete(transaction, rows)
    if len(rows) < SLICE_RESPONSES:
        transaction.write(sql.FORGET_TENANT, [(tenant_id,)])
    return len(rows) == SLICE_RESPONSES


def _delete(transaction: Transaction, rows: list[Row]) -> None:
    locked = LockedResponses(transaction)
    locked.delete(map(response_of, rows))
    locked.write()
