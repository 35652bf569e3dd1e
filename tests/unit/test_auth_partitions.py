"""Partitions of tenants, and the lease on them."""

import pytest

from penstock.auth.partitions.lease import LEASE_TTL_S, RENEWAL_INTERVAL_S, PartitionLease
from penstock.mesh.partitions import PARTITIONS, partition_of


@pytest.mark.parametrize(
    ("tenant_id", "partition"),
    [("default", 34), ("acme", 1), ("globex", 26), ("", 52), ("für Anna", 53), ("a" * 64, 36)],
)
def test_a_tenant_has_the_same_partition_in_every_release(tenant_id, partition):
    """Stored rows carry these numbers, so they must never change."""
    assert partition_of(tenant_id) == partition


def test_tenants_spread_over_all_partitions():
    counts = [0] * PARTITIONS
    for number in range(64 * 100):
        counts[partition_of(f"tenant-{number}")] += 1
    assert min(counts) > 50
    assert max(counts) < 200


def test_a_lease_that_was_never_granted_has_lapsed_and_is_due():
    lease = PartitionLease()
    assert lease.has_lapsed(0.0)
    assert lease.is_renewal_due(0.0)


def test_a_lease_is_renewed_several_times_before_it_can_end():
    lease = PartitionLease()
    lease.on_renewed(sent_at=10.0)
    assert not lease.is_renewal_due(10.0 + RENEWAL_INTERVAL_S - 0.01)
    assert lease.is_renewal_due(10.0 + RENEWAL_INTERVAL_S)
    assert lease.renewal_due == 10.0 + RENEWAL_INTERVAL_S
    assert 3 * RENEWAL_INTERVAL_S < LEASE_TTL_S


def test_a_lease_ends_a_ttl_after_the_renewal_was_sent_not_after_it_was_answered():
    """The database counts from a later moment, so that another process can never take over earlier."""
    lease = PartitionLease(ttl=2.0)
    lease.on_renewed(sent_at=10.0)  # called when the answer arrives, such as at 11.5
    assert not lease.has_lapsed(11.99)
    assert lease.has_lapsed(12.0)


def test_a_late_answer_does_not_shorten_the_lease():
    lease = PartitionLease(ttl=2.0)
    lease.on_renewed(sent_at=10.0)
    lease.on_renewed(sent_at=9.0)
    assert lease.expires_at == 12.0


@pytest.mark.parametrize(("ttl", "interval"), [(1.0, 1.0), (1.0, 2.0), (1.0, 0.0)])
def test_a_lease_that_cannot_be_renewed_in_time_is_an_error(ttl, interval):
    with pytest.raises(ValueError, match="renewed more often"):
        PartitionLease(ttl, interval)
