"""Stores of auth for tests: a SQLite file, or a database of a real PostgreSQL server."""

import itertools
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import date

import psycopg
import pytest

from penstock.auth.store.postgres.backend import PostgresBackend
from penstock.auth.store.sqlite import sql
from penstock.auth.store.sqlite.backend import SqliteBackend
from penstock.local_mesh.postgres import LocalPostgres

FULL = "database or disk is full"
_numbers = itertools.count()


@contextmanager
def postgres_server(folder):
    """Run a server. Tests kill its clients, not the server, so it need not flush."""
    server = LocalPostgres(folder, ("-c", "fsync=off", "-c", "max_connections=50"))
    with server.running():
        yield server


@contextmanager
def new_database(server):
    """Yield the URL of a database of its own."""
    name = f"test_{next(_numbers)}"
    administer(server.url(), f"CREATE DATABASE {name}")
    try:
        yield server.url(name)
    finally:
        administer(server.url(), f"DROP DATABASE {name} WITH (FORCE)")


def administer(url, *statements):
    """Run statements, each in a transaction of its own; return the rows of the last one."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        for each in statements:
            cursor = connection.execute(each)
        return cursor.fetchall() if cursor.description else []


@dataclass
class SqliteStore:
    """A file that a test opens and looks into."""

    location: str
    backend = SqliteBackend
    error = sqlite3.OperationalError

    def rows(self, statement):
        with closing(sqlite3.connect(self.location)) as raw:
            return raw.execute(statement).fetchall()

    @contextmanager
    def full_disk(self):
        """Let every transaction fail in the block, after a part of it was written."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sql, "apply", _apply_and_fail(sql.apply))
            patch.setattr(sql, "probe", _fail)
            yield


def _apply_and_fail(apply):
    def apply_and_fail(connection, change, **options):
        apply(connection, change, **options)
        _fail()

    return apply_and_fail


def _fail(*_):
    raise sqlite3.OperationalError(FULL)


_FAIL = f"""
    CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE '{FULL}' USING ERRCODE = 'disk_full'; END $$
"""


@dataclass
class PostgresStore:
    """A database that a test opens and looks into."""

    location: str
    backend = PostgresBackend
    error = psycopg.OperationalError

    def rows(self, statement):
        return [tuple(map(_plain, row)) for row in administer(self.location, statement)]

    @contextmanager
    def full_disk(self):
        """Let every transaction fail in the block, after a part of it was written."""
        trigger = "CREATE CONSTRAINT TRIGGER full_disk AFTER INSERT OR UPDATE ON writers DEFERRABLE INITIALLY DEFERRED"
        administer(self.location, _FAIL, f"{trigger} FOR EACH ROW EXECUTE FUNCTION fail()")
        try:
            yield
        finally:
            administer(self.location, "DROP TRIGGER full_disk ON writers")

    @contextmanager
    def unreachable(self):
        """Cut all connections and refuse new ones in the block."""
        name = psycopg.conninfo.conninfo_to_dict(self.location)["dbname"]
        other = self.location.replace(f"/{name}", "/postgres")
        administer(other, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        self.cut(other, name)
        try:
            yield
        finally:
            administer(other, f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")

    def cut(self, other=None, name=None):
        """End the sessions of auth."""
        name = name or psycopg.conninfo.conninfo_to_dict(self.location)["dbname"]
        administer(
            other or self.location.replace(f"/{name}", "/postgres"),
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'",
        )


def _plain(value):
    return value.isoformat() if isinstance(value, date) else value
