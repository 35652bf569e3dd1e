"""Routes of an edge to the replicas of auth: the owner of each partition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.chassis.streams.endpoint import FrameOutOfRange
from penstock.edge.upstreams.partition_routes import ALL_PARTITIONS, PartitionRoutes, epochs_of
from penstock.mesh.partitions import PARTITIONS
from penstock.mesh.v1.admission_pb2 import OwnedPartitions

ADDRESSES = ("a", "b", "c")


def routes(**claims: dict[int, int]) -> PartitionRoutes:
    found = PartitionRoutes()
    for address, epochs in claims.items():
        found.replace(address, epochs)
    return found


def test_the_replica_with_the_highest_epoch_owns_a_partition_in_any_order_of_frames():
    for order in (("a", "b"), ("b", "a")):
        found = PartitionRoutes()
        for address in order:
            found.replace(address, {7: {"a": 1, "b": 2}[address]})
        assert found.owner(7) == "b"
    assert found.replace("a", {7: 1}) == []


def test_a_frame_replaces_the_former_one_and_names_the_partitions_that_changed():
    found = routes(a={1: 1, 2: 1})
    assert found.replace("a", {2: 1, 3: 1}) == [1, 3]
    assert [found.owner(each) for each in (1, 2, 3)] == ["", "a", "a"]
    assert found.replace("a", {2: 2, 3: 1}) == [2]
    assert found.owned_by("a") == [2, 3]


def test_a_lost_replica_owns_nothing_and_an_older_claim_counts_again():
    found = routes(a={1: 1}, b={1: 2, 2: 2})
    assert found.remove("b") == [1, 2]
    assert (found.owner(1), found.owner(2), found.unowned) == ("a", "", PARTITIONS - 1)
    assert found.remove("b") == []


def test_replicas_of_a_former_release_own_all_partitions_one_after_the_other():
    found = routes(b=ALL_PARTITIONS, a=ALL_PARTITIONS)
    assert found.owned_by("b") == list(range(PARTITIONS))
    assert found.remove("b") == list(range(PARTITIONS))
    assert found.owned_by("a") == list(range(PARTITIONS))
    assert found.replace("c", {5: 1}) == [5]


def test_a_denied_claim_counts_again_with_the_next_frame_or_when_it_is_restored():
    found = routes(a={1: 3, 2: 3}, b={1: 2})
    assert found.deny("a", 1) == [1]
    assert found.owner(1) == "b"
    assert found.deny("a", 1) == found.deny("c", 1) == []
    assert found.replace("a", {1: 3, 2: 3}) == [1]
    found.deny("a", 2)
    assert found.restore_denied() == [2]
    assert found.restore_denied() == []


def test_a_lost_replica_leaves_no_denied_claim():
    found = routes(a={1: 3})
    found.deny("a", 1)
    found.remove("a")
    assert found.restore_denied() == []


claim_maps = st.dictionaries(st.integers(0, 3), st.integers(0, 3))


@given(st.lists(st.tuples(st.sampled_from(ADDRESSES), st.none() | claim_maps), max_size=20))
def test_changes_are_named_exactly_and_owners_have_the_highest_epoch(events):
    found, claims, former = PartitionRoutes(), {}, {}
    for address, epochs in events:
        changed = found.remove(address) if epochs is None else found.replace(address, epochs)
        claims[address] = epochs or {}
        present = {}
        for partition in range(4):
            highest = max((each.get(partition, -1) for each in claims.values()), default=-1)
            owner = found.owner(partition)
            assert bool(owner) == (highest >= 0)
            assert not owner or claims[owner][partition] == highest
            present[partition] = owner, max(highest, 0)
        assert changed == [each for each in range(4) if present[each] != former.get(each, ("", 0))]
        former = present


def test_a_frame_names_each_partition_with_its_epoch():
    assert epochs_of(OwnedPartitions(partitions=[1, 63], epochs=[5, 6])) == {1: 5, 63: 6}
    assert epochs_of(OwnedPartitions()) == {}


@pytest.mark.parametrize(
    ("partitions", "epochs", "text"),
    [
        ([1, 2], [1], "are of (2, 1) entries; allowed: as many of each"),
        ([], [1], "are of (0, 1) entries; allowed: as many of each"),
        ([2, 1], [1, 1], "is [2, 1]; allowed: ascending"),
        ([1, 1], [1, 1], "is [1, 1]; allowed: ascending"),
    ],
)
def test_a_frame_without_an_epoch_for_each_partition_or_out_of_order_is_out_of_range(partitions, epochs, text):
    with pytest.raises(FrameOutOfRange) as failure:
        epochs_of(OwnedPartitions(partitions=partitions, epochs=epochs))
    assert str(failure.value).endswith(text)
