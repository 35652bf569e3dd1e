"""The writer of the store: it retries charges in order, and its work is linear in the number of changes."""

import sqlite3

import pytest

from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.reservation import Charge, Reservation, ReservationRequest
from penstock.auth.quota.tenant_quota import Balance
from penstock.auth.regions.share import ShareRow
from penstock.auth.store.store import Barrier, Charged, PartitionsLost, PutShare, PutTenant
from penstock.auth.store.writer import MAX_CHANGES_PER_TRANSACTION, ChangeWriter
from penstock.mesh.partitions import partition_of

FULL = sqlite3.OperationalError("database or disk is full")
REQUEST = ReservationRequest(
    request_id="q", tenant_id="acme", key_id="k", edge_id="e", model="m", prompt_tokens=1, max_output_tokens=1
)
RESERVATION = Reservation(reservation_id="r", request=REQUEST, reserved_at=1.0, expires_at=2.0)
CHARGE = Charged(
    Charge(reservation=RESERVATION, prompt_tokens=1, output_tokens=1, outcome="stop", settled_at=1.5), Balance("acme")
)
SHARE = PutShare(ShareRow("acme", "", "us", 50, 50), Balance("acme"))
TENANT = PutTenant(Tenant(tenant_id="acme"))


class Callback:
    """The callback of one change. It counts the comparisons of all callbacks."""

    comparisons = 0

    def __init__(self, number):
        self.number = number

    def __call__(self, error):
        pass

    def __eq__(self, other):
        Callback.comparisons += 1
        return self is other

    __hash__ = None


class FakeDisk:
    """Commits batches while it has room for them."""

    def __init__(self):
        self.is_full = False
        self.room = None  # commits until it is full
        self.commits = []  # batches that were tried
        self.told = []  # completed changes with their errors
        self.writer = ChangeWriter(self.commit, lambda batch, error: self.told.extend((each, error) for each in batch))

    def commit(self, batch):
        self.commits.append(batch)
        if self.room is not None:
            self.room -= 1
            self.is_full = self.room < 0
        return FULL if self.is_full else None


def charges(count):
    return [(CHARGE, Callback(number)) for number in range(count)]


def numbers(changes):
    return [callback.number for _, callback in changes]


def test_charges_stay_unwritten_and_other_changes_fail():
    disk = FakeDisk()
    disk.is_full = True
    disk.writer.write([(CHARGE, Callback(1)), (TENANT, Callback(2)), (CHARGE, Callback(3)), (Barrier(), Callback(4))])
    assert numbers(disk.writer.unwritten) == [1, 3]
    assert [(callback.number, error) for (_, callback), error in disk.told] == [(2, FULL), (4, FULL)]
    assert not disk.writer.is_available


def test_unwritten_charges_come_first_and_in_order():
    disk = FakeDisk()
    disk.is_full = True
    for number in range(3):
        disk.writer.write([(CHARGE, Callback(number))])
    disk.is_full = False
    disk.writer.write([(TENANT, Callback(3))])
    assert numbers(each for each, _ in disk.told) == [0, 1, 2, 3]
    assert (disk.writer.unwritten, disk.writer.is_available) == ([], True)


def test_a_store_that_was_unavailable_is_probed_without_changes():
    disk = FakeDisk()
    disk.writer.write([])
    assert disk.commits == []
    disk.is_full = True
    disk.writer.write([(TENANT, Callback(1))])
    disk.writer.write([])
    assert not disk.writer.is_available
    disk.is_full = False
    disk.writer.write([])
    assert disk.writer.is_available
    assert disk.commits[1:] == [[], []]


def test_a_disk_that_fills_up_between_two_transactions_keeps_the_rest():
    disk, owed = FakeDisk(), charges(2_500)
    disk.room = 1
    disk.writer.write(owed)
    assert numbers(each for each, _ in disk.told) == list(range(1_000))
    assert numbers(disk.writer.unwritten) == list(range(1_000, 2_500))


@pytest.mark.parametrize("retries", [1, 5])
def test_a_retry_of_16_000_charges_compares_none_and_tries_one_transaction(retries):
    disk = FakeDisk()
    disk.is_full = True
    disk.writer.write(charges(16_000))
    disk.commits.clear()
    Callback.comparisons = 0
    for _ in range(retries):
        disk.writer.write([])
    assert [len(each) for each in disk.commits] == [MAX_CHANGES_PER_TRANSACTION] * retries
    disk.is_full = False
    disk.writer.write([])
    assert len(disk.told) == 16_000
    assert len(disk.commits) == retries + 16
    assert Callback.comparisons == 0


def test_a_share_of_a_lost_partition_fails_and_is_not_repeated():
    lost, outcomes = PartitionsLost(frozenset({partition_of("acme")})), []
    writer = ChangeWriter(
        lambda batch: lost if batch and batch[0][0] is SHARE else None, lambda *each: outcomes.append(each)
    )
    share, tenant = (SHARE, print), (TENANT, print)
    writer.write([share, tenant])
    assert outcomes == [([share], lost), ([tenant], None)]
    assert writer.unwritten == []
