"""Exchanges of shares in a spending region: what is stored, confirmed and written again."""

import sqlite3
from dataclasses import dataclass, field

import pytest

from penstock.auth.config import AuthConfig
from penstock.auth.identity.tenant import Tenant
from penstock.auth.regions.held import HeldShares
from penstock.auth.regions.share import FLOOR, Share
from penstock.auth.regions.spending.exchanges import ShareExchanges
from penstock.auth.store.recovery import recover
from penstock.auth.store.store import StoredState
from penstock.mesh.partitions import PARTITIONS, partition_of
from penstock.mesh.v1 import region_quota_pb2 as pb

TENANT = "acme"
PARTITION = partition_of(TENANT)
NOW = 1_800_000_100.0
FULL_DISK = sqlite3.OperationalError("database or disk is full")


@dataclass(eq=False)
class FakeStream:
    epochs: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 1))
    is_up: bool = True
    sent: list = field(default_factory=list)

    def send(self, frame):
        self.sent.append(frame)

    def leave(self, _):
        self.is_up = False

    def kinds(self):
        return [each.WhichOneof("frame") for each in self.sent if each.WhichOneof("frame") != "begin"]


class FakeStore:
    """Keeps changes until `end` completes them all."""

    def __init__(self):
        self.waiting = []

    def write(self, change, on_persisted):
        self.waiting.append((change, on_persisted))

    def end(self, error=None):
        """Complete all changes. Return their rows."""
        waiting, self.waiting = self.waiting, []
        for _, on_persisted in waiting:
            on_persisted(error)
        return [change.row for change, _ in waiting]


STATE = StoredState(
    tenants=[Tenant(tenant_id=TENANT, tokens_per_minute=1_000)],
    balances={},
    keys=[],
    reservations=[],
    lost=[],
    grant_uses=[],
    charged=[],
)


class Region:
    def __init__(self):
        self.store, self.held = FakeStore(), HeldShares("us")
        config = AuthConfig(region="us", home="eu", home_door="127.0.0.1:1", pepper="p" * 32, mesh_secret="m" * 32)
        epochs = dict.fromkeys(range(PARTITIONS), 1)
        self.authorizer = recover(config, STATE, NOW, epochs, self.held)
        self.exchanges = ShareExchanges("us", self.held, self.authorizer, self.store, lambda: NOW)
        self.stream = FakeStream()
        self.exchanges.add(self.stream)
        self.exchanges.update()

    def receive(self, number, rates):
        self.exchanges.on_share(self.stream, pb.Share(tenant_id=TENANT, rates=rates, budgets=50, number=number))


@pytest.fixture
def region():
    return Region()


def test_a_share_is_in_force_at_once_and_confirmed_once_it_is_stored(region):
    region.receive(1, 600)
    assert region.held.of(TENANT, "") == Share(600, 50)
    assert region.stream.kinds() == []
    region.store.end()
    assert region.stream.kinds() == ["held"]


def test_a_share_that_could_not_be_stored_is_written_again_and_then_confirmed(region):
    region.receive(1, 600)
    region.store.end(FULL_DISK)
    region.exchanges.tick(NOW)
    assert [each.rates for each in region.store.end()] == [600]
    assert region.stream.kinds() == ["held"]
    region.exchanges.tick(NOW)
    assert region.store.waiting == []


def test_a_share_that_could_not_be_stored_is_forgotten_with_its_partition(region):
    """The process that takes the partition reports what the store has, and the home region counts no more."""
    region.receive(1, 600)
    region.store.end(FULL_DISK)
    region.authorizer.give([PARTITION], NOW)
    region.exchanges.update()
    region.authorizer.take({PARTITION: 3}, STATE, NOW)
    region.exchanges.tick(NOW)
    assert region.store.waiting == []
    assert region.held.of(TENANT, "") == FLOOR
    region.exchanges.tick(NOW)
    assert region.store.waiting == []
