"""Upkeep of stored responses in slices: their time to live, late cancels, and responses of deleted tenants."""

from penstock.auth.store.responses import statements as sql
from penstock.auth.store.responses.locked import LockedResponses
from penstock.auth.store.responses.statements import Transaction, response_of

SLICE_RESPONSES = 64  # of one transaction


def run_slice(transaction: Transaction) -> bool:
    """Delete some responses whose time has ended, and cancel some whose holder is late. Return whether more are due.

    A response in progress lives as long as its lease.
    """
    now, locked = transaction.now, LockedResponses(transaction)
    lapsed = [response_of(row) for row in transaction.run(sql.LAPSED, now, SLICE_RESPONSES)]
    for each in lapsed:
        if each.lapse(now):
            locked.end(each)
    locked.write()
    expired = transaction.run(sql.EXPIRED, now, now, SLICE_RESPONSES)
    _delete(transaction, expired)
    return SLICE_RESPONSES in (len(lapsed), len(expired))


def delete_of_tenant(transaction: Transaction, tenant_id: str) -> bool:
    """Delete some responses of a tenant. Return whether it has more."""
    rows = transaction.run(sql.OF_TENANT, tenant_id, SLICE_RESPONSES)
    _delete(transaction, rows)
    if len(rows) < SLICE_RESPONSES:
        transaction.run(sql.FORGET_TENANT, tenant_id)
    return len(rows) == SLICE_RESPONSES


def _delete(transaction: Transaction, rows: list[sql.Row]) -> None:
    locked = LockedResponses(transaction)
    locked.delete(map(response_of, rows))
    locked.write()
