"""Taking, renewing and releasing all partitions, with the epochs that fence former owners off."""

import threading
import time
from dataclasses import dataclass

import psycopg
import structlog

from penstock.auth.store.postgres.charges import Statement
from penstock.auth.store.postgres.connection import StoreConnection, application_name
from penstock.auth.store.postgres.lease import PartitionLease
from penstock.auth.store.postgres.schema import BATCH_DECIDED, PARTITIONS_TAKEN
from penstock.auth.store.store import StoreUnusable
from penstock.mesh.partitions import partition_of

log = structlog.get_logger()

TAKE_TIMEOUT_S = 30.0  # s; a former process drains for less, and then releases its partitions
TAKE_INTERVAL_S = 0.1  # s between looks whether the lease of another process has ended

_OTHERS = """
    SELECT DISTINCT owner FROM partitions
    WHERE owner <> '' AND (NOT %s OR lease_until > statement_timestamp())
"""
_END_SESSIONS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = ANY(%s) AND usename = current_user AND datname = current_database()
        AND pid <> pg_backend_pid()
"""
_LOCK = """
    SELECT bool_and(owner = '' OR lease_until <= statement_timestamp())
    FROM (SELECT owner, lease_until FROM partitions ORDER BY partition FOR UPDATE) AS held
"""
_TAKE = """
    UPDATE partitions SET owner = %s, address = '', epoch = epoch + 1,
        lease_until = statement_timestamp() + make_interval(secs => %s)
    RETURNING partition, epoch
"""
_FORGET_WRITERS = "DELETE FROM writers WHERE owner NOT IN (SELECT owner FROM partitions)"
_HOLD = "SELECT hold_partitions(%s, %s::smallint[], %s::bigint[])"
_RENEW = """
    UPDATE partitions SET lease_until = statement_timestamp() + make_interval(secs => %s) WHERE owner = %s
"""
_RELEASE = "UPDATE partitions SET owner = '', address = '', lease_until = '-infinity' WHERE owner = %s"


class PartitionsTaken(Exception):
    """Another process has taken over partitions of this one, which can write no more and must end."""


class StoreDiverged(Exception):
    """The database has lost commits, such as in a failover, or was restored: the state in memory is another one."""


def check_fence(error: psycopg.Error) -> None:
    """Raise PartitionsTaken or StoreDiverged if a transaction failed because this process must not write any more."""
    if error.sqlstate == PARTITIONS_TAKEN:
        text = f"{error.diag.message_primary}; nothing was written. The other process has the state: end this process"
        raise PartitionsTaken(text) from None
    if error.sqlstate == BATCH_DECIDED:
        text = f"{error.diag.message_primary}; the database has lost commits or was restored. Restart this process"
        raise StoreDiverged(text) from None


@dataclass(frozen=True, slots=True)
class Ownership:
    """The partitions of one owner with their epochs."""

    owner: str
    epochs: dict[int, int]  # by partition

    def hold(self, tenants: set[str] | None) -> Statement:
        """Return the statement that fails unless the partitions of these tenants, None for all, are still its own.

        Until the transaction ends, no other process can take them over.
        """
        partitions = list(self.epochs) if tenants is None else sorted({partition_of(each) for each in tenants})
        return _HOLD, (self.owner, partitions, [self.epochs[each] for each in partitions])

    def renewal(self, ttl: float) -> Statement:
        return _RENEW, (ttl, self.owner)

    def release(self) -> list[Statement]:
        return [(_RELEASE, (self.owner,)), ("DELETE FROM writers WHERE owner = %s", (self.owner,))]


def take_all(connection: StoreConnection, owner: str, lease: PartitionLease, closing: threading.Event) -> Ownership:
    """Take all partitions once no other process has a lease. Raises StoreUnusable after `TAKE_TIMEOUT_S`."""
    give_up_at, is_told = time.monotonic() + TAKE_TIMEOUT_S, False
    while True:
        others = _owners(connection, with_lease=True)
        if not others and (taken := _try_take(connection, owner, lease)):
            return taken
        if others and not is_told:
            log.info("partitions_awaited", owners=others)
            is_told = True
        if time.monotonic() >= give_up_at or closing.is_set():
            raise StoreUnusable(
                f"another auth process uses this store ({', '.join(others)}) and renews its lease; end that process, or"
                " wait until it has drained"
            )
        closing.wait(TAKE_INTERVAL_S)


def _owners(connection: StoreConnection, *, with_lease: bool) -> list[str]:
    with connection.transaction():
        return [row[0] for row in connection.execute(_OTHERS, (with_lease,))]


def _try_take(connection: StoreConnection, owner: str, lease: PartitionLease) -> Ownership | None:
    """Take the partitions, unless another process was faster. A former owner's open transaction is ended first."""
    if former := _owners(connection, with_lease=False):
        end_sessions(connection, former)
    sent_at = time.monotonic()
    with connection.transaction():
        row = connection.execute(_LOCK).fetchone()
        if row is None or not row[0]:
            return None
        epochs: dict[int, int] = dict(sorted(connection.execute(_TAKE, (owner, lease.start_ttl)).fetchall()))
        connection.execute(_FORGET_WRITERS)
        connection.execute("INSERT INTO writers (owner) VALUES (%s)", (owner,))
    lease.on_renewed(sent_at)
    log.info("partitions_taken", owner=owner, former=former, epoch=max(epochs.values()))
    return Ownership(owner, epochs)


def end_sessions(connection: StoreConnection, owners: list[str]) -> None:
    """End other sessions of these owners, so that no transaction of theirs holds locks."""
    with connection.transaction():
        connection.execute(_END_SESSIONS, ([application_name(each) for each in owners],))
