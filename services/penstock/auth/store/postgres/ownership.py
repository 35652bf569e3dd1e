"""Partitions and leases in PostgreSQL, with the epochs that fence former owners off."""

from collections.abc import Collection
from dataclasses import dataclass

import psycopg
import structlog

from penstock.auth.partitions.keeper import Member, PartitionRow, Presence, View
from penstock.auth.store.postgres.charges import Statement
from penstock.auth.store.postgres.connection import application_name
from penstock.auth.store.postgres.schema import BATCH_DECIDED, PARTITIONS_TAKEN
from penstock.auth.store.postgres.statements import read
from penstock.auth.store.store import StoredState
from penstock.chassis.database.postgres import BEGIN, StoreConnection

log = structlog.get_logger()

_END_SESSIONS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = ANY(%s) AND usename = current_user AND datname = current_database()
        AND pid <> pg_backend_pid()
"""
# A writer whose lease ended long ago is forgotten. A paused process that returns later must start again.
_FORGET_WRITERS = """
    DELETE FROM writers WHERE lease_until < statement_timestamp() - interval '1 hour'
        AND owner NOT IN (SELECT owner FROM partitions)
"""
_REGISTER = """
    INSERT INTO writers (owner, address, lease_until)
    VALUES (%s, %s, statement_timestamp() + make_interval(secs => %s))
"""
_RENEW = """
    UPDATE writers SET lease_until = statement_timestamp() + make_interval(secs => %s), takes = %s, edges = %s
    WHERE owner = %s RETURNING owner
"""
_ROWS = "SELECT partition, owner, epoch, lease_until > statement_timestamp() FROM partitions"
_MEMBERS = """
    SELECT owner, takes, edges, extract(epoch FROM lease_until - statement_timestamp())::float8, address
    FROM writers WHERE lease_until > statement_timestamp()
"""
_CATALOG_VERSION = "SELECT version FROM catalog"
# The rows are locked first, so that the next statement sees what other replicas have committed.
_LOCK = "SELECT 1 FROM partitions WHERE partition = ANY(%s::smallint[]) ORDER BY partition FOR UPDATE"
_TAKE = """
    UPDATE partitions SET owner = %s, address = '', epoch = epoch + 1, lease_until = '-infinity'
    WHERE partition = ANY(%s::smallint[]) AND lease_until <= statement_timestamp() AND owner NOT IN (
        SELECT owner FROM writers WHERE owner <> %s AND lease_until > statement_timestamp()
    )
    RETURNING partition, epoch
"""
_HOLD = "SELECT hold_partitions(%s, %s::smallint[], %s::bigint[])"
_RELEASE = """
    UPDATE partitions SET owner = '', address = '', lease_until = '-infinity'
    WHERE owner = %s AND partition = ANY(%s::smallint[])
"""
_RELEASE_ALL = "UPDATE partitions SET owner = '', address = '', lease_until = '-infinity' WHERE owner = %s"


class StoreDiverged(Exception):
    """The database has lost commits, such as in a failover, or was restored: the state in memory is another one."""


def is_taken(error: psycopg.Error) -> bool:
    """Return whether a transaction failed because another replica owns a partition. Raises StoreDiverged."""
    if error.sqlstate == BATCH_DECIDED:
        text = f"{error.diag.message_primary}; the database has lost commits or was restored. Restart this process"
        raise StoreDiverged(text) from None
    return error.sqlstate == PARTITIONS_TAKEN


def hold(owner: str, epochs: Collection[tuple[int, int]]) -> Statement:
    """Return the statement that fails unless these partitions with these epochs are still the owner's.

    Until the transaction ends, no other process can take them over.
    """
    ordered = sorted(epochs)
    return _HOLD, (owner, [partition for partition, _ in ordered], [epoch for _, epoch in ordered])


def release(owner: str, partitions: Collection[int]) -> Statement:
    return _RELEASE, (owner, sorted(partitions))


def resign(owner: str) -> list[Statement]:
    """Return the statements by which a process leaves the store."""
    return [(_RELEASE_ALL, (owner,)), ("DELETE FROM writers WHERE owner = %s", (owner,))]


@dataclass(frozen=True, slots=True)
class PostgresPartitions:
    """The table of partitions, over one connection. See `PartitionTable`."""

    connection: StoreConnection
    owner: str

    def register(self, address: str, ttl: float) -> None:
        with self.connection.transaction():
            self.connection.execute(_FORGET_WRITERS)
            self.connection.execute(_REGISTER, (self.owner, address, ttl))

    def renew(self, ttl: float, presence: Presence) -> View:
        with self.connection.pipeline():
            self.connection.execute(BEGIN)
            renewed = self.connection.execute(_RENEW, (ttl, *presence, self.owner))
            rows = self.connection.execute(_ROWS)
            members = self.connection.execute(_MEMBERS)
            version = self.connection.execute(_CATALOG_VERSION)
            self.connection.execute("COMMIT")
        if renewed.fetchone() is None:
            raise StoreDiverged(f"the database does not know {self.owner} any more. Restart this process")
        return View(
            rows={row[0]: PartitionRow(*row[1:]) for row in rows},
            members={row[0]: Member(Presence(row[1], row[2]), row[3], row[4]) for row in members},
            catalog_version=(version.fetchone() or (0,))[0],
        )

    def take(self, partitions: Collection[int], former: Collection[str]) -> dict[int, int]:
        if former:
            end_sessions(self.connection, former)
        chosen = sorted(partitions)
        with self.connection.transaction():
            self.connection.execute(_LOCK, (chosen,))
            taken = self.connection.execute(_TAKE, (self.owner, chosen, self.owner)).fetchall()
        epochs: dict[int, int] = dict(sorted(taken))
        names = {"owner": self.owner, "former": sorted(former), "partitions": len(epochs)}
        log.info("partitions_taken", **names, epoch=max(epochs.values(), default=0))
        return epochs

    def read(self, partitions: Collection[int]) -> StoredState:
        with self.connection.transaction():
            return read(self.connection, partitions)


def end_sessions(connection: StoreConnection, owners: Collection[str]) -> None:
    """End other sessions of these owners, so that no transaction of theirs holds locks."""
    with connection.transaction():
        connection.execute(_END_SESSIONS, ([application_name(each) for each in owners],))
