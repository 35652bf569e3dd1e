"""The exchange of shares begins with one frame for each partition, which is far smaller than a message may be."""

from collections import Counter

from penstock.auth.regions import frames
from penstock.auth.regions.granted import GrantedShares
from penstock.auth.regions.held import HeldShares
from penstock.auth.regions.share import FULL, ShareRow
from penstock.chassis.channels import MAX_MESSAGE_BYTES
from penstock.mesh.limits import bounds
from penstock.mesh.partitions import PARTITIONS, partition_of

TENANTS, SCOPES_PER_TENANT = 100_000, 10
TENANT_CHARS = 63


def test_the_largest_frame_of_ascii_names_is_within_the_bound_of_a_message():
    longest = ShareRow("t" * TENANT_CHARS, "s" * bounds.SCOPE_CHARS, "us", FULL, FULL)
    one, two = (frames.begin(63, bounds.EPOCH, [longest] * number).ByteSize() for number in (1, 2))
    length_bytes = 8  # of the messages around the shares, which grow with them
    assert one + (two - one) * bounds.SHARES + length_bytes < MAX_MESSAGE_BYTES


def test_a_hundred_thousand_tenants_with_ten_scopes_are_far_below_the_bound_of_a_frame():
    in_partition = Counter(partition_of(f"tenant-{each:06}") for each in range(TENANTS))
    assert max(in_partition.values()) * SCOPES_PER_TENANT < bounds.SHARES / 5


def test_each_partition_of_many_tenants_is_exchanged_by_itself():
    rows = [ShareRow(f"tenant-{each}", "", "us", 100, 200) for each in range(2_000)]
    held, granted = HeldShares("us"), GrantedShares(["us"])
    held.restore(rows)
    for partition in range(PARTITIONS):
        begin = frames.begin(partition, 1, held.rows_of(partition)).begin
        assert len(begin.shares) == held.count(partition)
        assert len(granted.on_begin("us", partition, frames.rows_of(begin, "us"))) == held.count(partition)
    assert sum(map(held.count, range(PARTITIONS))) == 2_000
    assert repr(granted) == "<GrantedShares 2000 scopes, 0 with demand>"
    assert granted.on_begin("us", partition_of("tenant-7"), []) != []  # the region has lost its store
    assert granted.own("tenant-7", "").budgets == 950
    granted.forget(lambda tenant_id: tenant_id != "tenant-8")
    assert granted.own("tenant-8", "").budgets == (950 if partition_of("tenant-8") == partition_of("tenant-7") else 800)
    assert repr(granted).startswith(("<GrantedShares 1 ", "<GrantedShares 0 "))
