"""Auth fallback: outages by partition."""

import math

from hypothesis import given
from hypothesis import strategies as st

from penstock.edge.auth_fallback.partition_outages import TAKEOVER_WAIT_S, OutageStage, PartitionOutages

LOW, HIGH = range(32), range(32, 64)
THRESHOLD_S = 1.0
REACHABLE, TAKEOVER_EXPECTED, UNREACHABLE = OutageStage


def two_replicas() -> PartitionOutages:
    """Return the outages of an edge to which both replicas have responded."""
    found = PartitionOutages(outage_after=THRESHOLD_S)
    for address, partitions in (("a", LOW), ("b", HIGH)):
        found.on_connected(address, 0.0)
        found.assign(partitions, address, 0.0)
        found.on_request_sent(address, "first", 0.0)
        found.on_response(address, 0.0, "first")
    return found


def stages(found: PartitionOutages, now: float) -> tuple[OutageStage, OutageStage]:
    """Return the stages of a partition of each replica after a check."""
    found.check(now)
    return found.group(0).stage, found.group(63).stage


def test_the_partitions_of_a_lost_replica_are_unreachable_after_the_threshold_and_no_others():
    found = two_replicas()
    found.on_disconnected("a", 10.0)
    assert [found.is_unreachable(partition, 10.999) for partition in (0, 31)] == [False, False]
    assert [found.is_unreachable(partition, 11.0) for partition in (0, 31, 32)] == [True, True, False]
    assert not found.is_all_unreachable(1e9)
    assert found.is_any_unreachable(11.0)
    assert not found.is_any_unreachable(10.9)


def test_a_takeover_ends_the_outage_of_its_partitions():
    found = two_replicas()
    found.on_disconnected("a", 10.0)
    assert stages(found, 11.5) == (TAKEOVER_EXPECTED, REACHABLE)
    found.assign(range(16), "b", 11.8)
    assert (found.is_unreachable(0, 11.8), found.is_unreachable(16, 11.8)) == (False, True)


def test_requests_that_no_grant_admits_wait_until_no_takeover_is_expected_any_more():
    found = two_replicas()
    found.on_disconnected("a", 10.0)
    assert found.is_takeover_expected(0, 13.99)
    assert not found.is_takeover_expected(0, 10.0 + TAKEOVER_WAIT_S)
    assert stages(found, 13.99) == (TAKEOVER_EXPECTED, REACHABLE)
    assert found.check(14.0) == [found.group(0)]
    assert stages(found, 14.0) == (UNREACHABLE, REACHABLE)


def test_no_takeover_is_expected_without_another_replica_that_responds():
    found = two_replicas()
    found.on_disconnected("a", 10.0)
    found.on_disconnected("b", 10.5)
    assert not found.is_takeover_expected(0, 10.6)
    assert stages(found, 11.2) == (UNREACHABLE, REACHABLE)
    assert not found.is_all_unreachable(11.2)
    assert stages(found, 11.5) == (UNREACHABLE, UNREACHABLE)
    assert found.is_all_unreachable(11.5)
    silent = two_replicas()
    silent.on_request_sent("b", "x", 9.0)
    silent.on_disconnected("a", 10.0)
    assert stages(silent, 11.0) == (UNREACHABLE, UNREACHABLE)


def test_the_silence_of_a_replica_counts_for_all_of_its_partitions_and_goes_on_when_its_stream_is_cut():
    found = two_replicas()
    found.on_request_sent("a", "x", 10.0)
    assert stages(found, 11.0) == (TAKEOVER_EXPECTED, REACHABLE)
    found.on_disconnected("a", 11.9)
    assert found.is_unreachable(31, 11.9)
    assert found.outage_duration(0, 12.0) == 2.0
    assert not found.is_takeover_expected(0, 14.0)


def test_a_request_that_moved_to_another_replica_is_not_missed_at_the_former_one():
    found = two_replicas()
    found.on_request_sent("a", "x", 10.0)
    found.on_request_moved("a", "x")
    assert not found.is_unreachable(0, 1e9)


def test_partitions_that_a_connected_replica_gives_up_are_unreachable_after_the_threshold():
    found = two_replicas()
    found.unassign(range(16), 10.0)
    assert [found.is_unreachable(partition, 11.0) for partition in (0, 16)] == [True, False]
    assert found.group(0) is found.group(15)
    assert (found.group(0).partitions, found.group(16).partitions) == (16, 16)
    assert found.check(11.0) == [found.group(0)]  # one event


def test_a_replica_that_ends_on_purpose_is_missed_at_once_only_if_no_other_is_connected():
    found = two_replicas()
    found.unassign([0], 9.9)
    found.on_disconnected("a", 10.0, on_purpose=True)
    assert not found.is_unreachable(1, 10.0)
    found.on_disconnected("b", 10.2, on_purpose=True)
    assert [found.is_unreachable(partition, 10.2) for partition in (0, 1, 63)] == [True, True, True]
    assert found.is_all_unreachable(10.2)


def test_a_replica_without_a_store_affects_its_own_partitions_only():
    found = two_replicas()
    found.on_store_state("a", 10.0, is_unavailable=True)
    assert (found.is_store_unavailable(0), found.is_store_unavailable(63)) == (True, False)
    assert stages(found, 10.0) == (TAKEOVER_EXPECTED, REACHABLE)
    assert found.is_responsive("b", 10.0)
    assert not found.is_responsive("a", 10.0)
    found.on_store_state("b", 10.1, is_unavailable=True)
    assert stages(found, 10.1) == (UNREACHABLE, UNREACHABLE)
    assert found.is_all_unreachable(10.1)
    found.on_store_state("a", 10.2, is_unavailable=False)
    assert stages(found, 10.2) == (REACHABLE, TAKEOVER_EXPECTED)


def test_an_outage_goes_on_over_owners_that_do_not_respond():
    found = two_replicas()
    found.on_disconnected("a", 10.0)
    found.assign(LOW, "b", 20.0)
    assert found.outage_duration(0, 20.5) == 10.5
    assert found.outage_duration(63, 20.5) == 0.0
    found.on_disconnected("b", 20.9)
    assert found.outage_duration(0, 30.0) == 20.0
    assert round(found.outage_duration(63, 30.0), 6) == 9.1


def test_an_outage_of_the_store_does_not_continue_one_that_a_response_has_ended():
    found = two_replicas()
    found.on_disconnected("a", 10.0)
    found.assign(LOW, "b", 12.0)
    found.on_request_sent("b", "second", 12.0)
    found.on_response("b", 12.1, "second")
    found.on_store_state("b", 80.0, is_unavailable=True)
    assert found.outage_duration(0, 85.0) == 5.0
    found.on_request_sent("b", "third", 85.0)
    found.on_response("b", 85.1, "third")  # a rejection, or an answer that needs no store
    assert found.outage_duration(0, 90.0) == 10.0


def test_a_response_of_the_next_owner_or_a_quiet_second_ends_an_outage():
    found = two_replicas()
    found.on_disconnected("a", 10.0)
    found.assign(LOW, "b", 20.0)
    found.on_request_sent("b", "x", 20.1)
    found.on_response("b", 20.2, "x")
    found.on_disconnected("b", 20.3)
    assert round(found.outage_duration(0, 21.3), 6) == 1.0
    quiet = two_replicas()
    quiet.on_disconnected("a", 10.0)
    quiet.assign(LOW, "b", 20.0)
    quiet.on_disconnected("b", 21.0)
    assert quiet.outage_duration(0, 22.0) == 1.0


def test_a_partition_that_never_had_an_owner_counts_as_lost_from_the_first_connection():
    found = PartitionOutages(outage_after=THRESHOLD_S)
    assert not found.is_all_unreachable(1e9)
    found.on_connected("b", 5.0)
    found.assign(HIGH, "b", 5.0)
    assert not found.is_unreachable(0, 1e9)  # no replica has responded yet
    found.on_request_sent("b", "x", 5.1)
    found.on_response("b", 5.2, "x")
    assert (found.is_unreachable(0, 5.9), found.is_unreachable(0, 6.0)) == (False, True)
    assert found.is_takeover_expected(0, 8.9)


def test_no_outage_is_declared_for_any_partition_before_the_first_response_of_a_replica():
    found = PartitionOutages(outage_after=THRESHOLD_S)
    for address, partitions in (("a", LOW), ("b", HIGH)):
        found.on_connected(address, 0.0)
        found.assign(partitions, address, 0.0)
    found.on_request_sent("a", "x", 0.0)
    found.on_disconnected("b", 1.0)
    assert stages(found, 9.0) == (REACHABLE, REACHABLE)
    found.on_response("a", 9.0, "x")
    assert stages(found, 9.0) == (REACHABLE, UNREACHABLE)


def test_the_next_check_is_due_when_a_stage_may_change():
    found = two_replicas()
    assert math.isinf(found.next_change_at(10.0))
    assert not found.is_timing
    found.on_disconnected("a", 10.0)
    assert found.is_timing
    assert (found.next_change_at(10.0), found.next_change_at(11.0)) == (11.0, 14.0)
    assert math.isinf(found.next_change_at(14.0))


events = st.one_of(
    st.tuples(st.just("connect"), st.sampled_from("ab")),
    st.tuples(st.just("disconnect"), st.sampled_from("ab")),
    st.tuples(st.just("assign"), st.sampled_from("ab")),
    st.tuples(st.just("unassign"), st.integers(0, 63)),
)


@given(st.lists(events, max_size=40))
def test_every_partition_is_in_one_group_and_no_group_without_partitions_is_kept(actions):
    found, connected = PartitionOutages(outage_after=THRESHOLD_S), set()
    for now, (action, value) in enumerate(actions):
        if action == "connect" and value not in connected:
            connected.add(value)
            found.on_connected(value, float(now))
        elif action == "disconnect" and value in connected:
            connected.discard(value)
            found.on_disconnected(value, float(now))
        elif action == "assign" and value in connected:
            found.assign(range(now % 64), value, float(now))
        elif action == "unassign":
            found.unassign([value], float(now))
        groups = [found.group(partition) for partition in range(64)]
        assert all(group.partitions == groups.count(group) for group in found.groups)
        assert sum(group.partitions for group in found.groups) == 64
        assert all(group.partitions or group.is_connected or not connected for group in found.groups)
        found.check(float(now))
