import pytest

from penstock.routing.resources.types import Resource, ResourceType
from penstock.routing.snapshot import Snapshot, SnapshotInconsistent

SECRET, CLUSTER, ENDPOINT, LISTENER, ROUTE = ResourceType


def resource(kind, name, *refers, body=b""):
    return Resource(type=kind, name=name, body=body, references=frozenset(refers))


COMPLETE_SNAPSHOT = (
    resource(LISTENER, "front", (ROUTE, "edges")),
    resource(ROUTE, "edges", (CLUSTER, "grpc")),
    resource(CLUSTER, "grpc", (ENDPOINT, "grpc")),
    resource(ENDPOINT, "grpc"),
)


def test_a_complete_snapshot_is_consistent():
    assert repr(Snapshot.of(COMPLETE_SNAPSHOT)) == "<Snapshot 0 SECRET, 1 CLUSTER, 1 ENDPOINT, 1 LISTENER, 1 ROUTE>"


@pytest.mark.parametrize(
    ("missing", "fault"),
    [
        (ROUTE, "LISTENER 'front' refers to ROUTE 'edges', which does not exist"),
        (CLUSTER, "ROUTE 'edges' refers to CLUSTER 'grpc', which does not exist"),
        (ENDPOINT, "CLUSTER 'grpc' refers to ENDPOINT 'grpc', which does not exist"),
        (LISTENER, "no resource refers to ROUTE 'edges', so no proxy would request it"),
    ],
)
def test_a_snapshot_with_a_missing_resource_is_rejected_with_its_name(missing, fault):
    with pytest.raises(SnapshotInconsistent, match=fault):
        Snapshot.of(item for item in COMPLETE_SNAPSHOT if item.type is not missing)


def test_two_resources_of_one_name_are_rejected():
    with pytest.raises(SnapshotInconsistent, match="two resources of type CLUSTER are named 'grpc'"):
        Snapshot.of([*COMPLETE_SNAPSHOT, resource(CLUSTER, "grpc")])


def test_all_faults_are_named_at_once():
    with pytest.raises(SnapshotInconsistent) as failure:
        Snapshot.of([COMPLETE_SNAPSHOT[0], COMPLETE_SNAPSHOT[3]])
    assert "ROUTE 'edges'" in str(failure.value)
    assert "ENDPOINT 'grpc'" in str(failure.value)


def test_a_change_moves_the_version_of_its_own_type_only():
    before = Snapshot.of(COMPLETE_SNAPSHOT)
    after = Snapshot.of([*COMPLETE_SNAPSHOT[:3], resource(ENDPOINT, "grpc", body=b"more")])
    moved = [kind for kind in ResourceType if before.versions[kind] != after.versions[kind]]
    assert moved == [ENDPOINT]
    assert after.differs_from(before)


def test_the_same_resources_in_another_order_are_the_same_snapshot():
    assert not Snapshot.of(reversed(COMPLETE_SNAPSHOT)).differs_from(Snapshot.of(COMPLETE_SNAPSHOT))


def test_a_snapshot_cannot_be_changed():
    snapshot = Snapshot.of(COMPLETE_SNAPSHOT)
    with pytest.raises(TypeError):
        snapshot.by_type[CLUSTER]["grpc"] = COMPLETE_SNAPSHOT[0]
