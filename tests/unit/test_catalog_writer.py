"""The writer of the shared catalog: revocations reach the store, whichever process writes it."""

import sqlite3
from dataclasses import replace

import pytest

from penstock.auth.config import AuthConfig
from penstock.auth.identity.keys import Key
from penstock.auth.identity.tenant import Tenant
from penstock.auth.models.routes import RouteList
from penstock.auth.regions.catalog.catalog import catalog_of
from penstock.auth.regions.catalog.writer import WRITER_PARTITION, CatalogWriter
from penstock.auth.regions.held import HeldShares
from penstock.auth.store.recovery import recover
from penstock.auth.store.store import PutKey, StoredState

NOW = 1_800_000_000.0
TENANT = Tenant(tenant_id="acme")
KEY = Key(key_id="k1", tenant_id="acme", digest=b"d" * 32, created_at=1.0)
REVOKED = replace(KEY, revoked_at=NOW - 1.0)
STATE = StoredState(
    tenants=[TENANT], balances={}, keys=[KEY], reservations=[], lost=[], grant_uses=[], charged=[], home="eu"
)


class FakeStore:
    def __init__(self):
        self.waiting = []

    def write(self, change, on_persisted):
        self.waiting.append((change, on_persisted))

    def end(self, error=None):
        """Complete all changes. Return them."""
        waiting, self.waiting = self.waiting, []
        for _, on_persisted in waiting:
            on_persisted(error)
        return [change for change, _ in waiting]


class Process:
    """A process of a spending region that owns some partitions."""

    def __init__(self, *partitions):
        config = AuthConfig(region="us", home="eu", home_door="127.0.0.1:1", pepper="p" * 32, mesh_secret="m" * 32)
        self.store = FakeStore()
        self.authorizer = recover(config, STATE, NOW, dict.fromkeys(partitions, 1), HeldShares("us"))
        self.writer = CatalogWriter(self.authorizer, RouteList([]), None, self.store, lambda: NOW, "eu", "eu")

    def follow(self, *keys):
        self.writer.follow(catalog_of([TENANT], keys, [], []))

    def take_writer_partition(self):
        self.authorizer.take({WRITER_PARTITION: 2}, STATE, NOW)
        self.writer.step()

    @property
    def is_revoked(self):
        return self.authorizer.keys.by_id("k1").revoked_at is not None


@pytest.fixture
def other():
    """Yield a process that does not write the catalog and knows of a revocation."""
    process = Process(WRITER_PARTITION + 1)
    process.follow(REVOKED)
    assert process.is_revoked
    assert process.store.waiting == []
    return process


def test_a_revocation_is_written_by_the_process_that_takes_over_from_the_writer(other):
    """The former writer may have died before it had written it."""
    other.take_writer_partition()
    assert other.store.end() == [PutKey(REVOKED)]
    other.writer.step()
    assert other.store.waiting == []


def test_a_revocation_of_a_key_that_was_deleted_meanwhile_is_not_written(other):
    other.follow()
    other.take_writer_partition()
    assert other.store.waiting == []


def test_a_revocation_whose_writing_fails_is_written_with_the_next_step():
    process = Process(WRITER_PARTITION)
    process.follow(REVOKED)
    assert process.store.end(sqlite3.OperationalError("database or disk is full")) == [PutKey(REVOKED)]
    process.writer.step()
    assert process.store.end() == [PutKey(REVOKED)]
