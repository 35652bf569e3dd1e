"""The keeper of one replica's partitions, with a table in memory: takeovers, moves, drains and lost partitions."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partition_table import KeptReplica, PartitionDatabase, TableUnavailable
from penstock.auth.partitions.keeper import FAST_INTERVAL_S, JOIN_TIMEOUT_S, NOTICE_S, PartitionRow
from penstock.auth.partitions.lease import LEASE_TTL_S, RENEWAL_INTERVAL_S
from penstock.auth.store.store import CatalogChanged, Lost, Taken
from penstock.mesh.partitions import PARTITIONS

ALL = set(range(PARTITIONS))


@pytest.fixture
def database():
    return PartitionDatabase()


def run(database, *replicas, seconds):
    """Let the replicas look when their keepers require it, and commit what they must release."""
    end = database.now + seconds
    while True:
        due = min(replicas, key=lambda each: each.keeper.due)
        database.now = max(database.now, due.keeper.due, 0.0)
        if database.now >= end:
            database.now = end
            return
        due.look()
        due.release()


def two_replicas(database):
    replicas = KeptReplica(database, "a"), KeptReplica(database, "b")
    run(database, *replicas, seconds=3.0)
    return replicas


def kinds(replica):
    return [type(event) for event in replica.events]


def test_the_first_replica_takes_all_partitions_at_once(database):
    replica = KeptReplica(database, "a")
    replica.look()
    assert database.owned("a") == ALL
    assert replica.keeper.epochs == dict.fromkeys(range(PARTITIONS), 1)
    assert kinds(replica) == [Taken]


def test_a_second_replica_gets_half_of_the_partitions_soon(database):
    first, second = KeptReplica(database, "a"), KeptReplica(database, "b")
    first.look()
    run(database, first, second, seconds=2 * RENEWAL_INTERVAL_S + 16 * FAST_INTERVAL_S)
    assert len(database.owned("a")) == len(database.owned("b")) == PARTITIONS // 2
    assert first.served.keys() == database.owned("a")
    assert second.served.keys() == database.owned("b")


def test_partitions_without_moves_are_looked_at_with_each_renewal_only(database):
    first, _ = two_replicas(database)
    first.look()
    assert first.keeper.due == pytest.approx(database.now + RENEWAL_INTERVAL_S)


def test_a_partition_is_free_only_after_its_owner_has_stopped_to_serve_it(database):
    first, second = KeptReplica(database, "a"), KeptReplica(database, "b")
    first.look()
    second.look()
    second.look()  # announces that it takes partitions
    first.look()
    given_away = first.to_release
    assert given_away
    assert not given_away & first.served.keys()
    second.look()
    assert database.owned("b") == set()
    first.release()
    second.look()
    assert database.owned("b") == given_away


def test_a_replica_takes_from_others_only_once_as_many_edges_are_connected_to_it(database):
    first, second = KeptReplica(database, "a"), KeptReplica(database, "b")
    first.keeper.edges = 2
    run(database, first, seconds=1.0)
    second.keeper.edges = 1
    run(database, first, second, seconds=JOIN_TIMEOUT_S - 1.0)
    assert database.owned("a") == ALL
    second.keeper.edges = 2
    run(database, first, second, seconds=1.0)
    assert len(database.owned("b")) == PARTITIONS // 2


def test_a_replica_that_some_edge_cannot_reach_takes_from_others_after_a_while(database):
    first, second = KeptReplica(database, "a"), KeptReplica(database, "b")
    first.keeper.edges = 2
    run(database, first, seconds=1.0)
    run(database, first, second, seconds=JOIN_TIMEOUT_S + 1.0)
    assert len(database.owned("b")) == PARTITIONS // 2


def test_a_replica_without_edges_takes_over_from_a_dead_one_at_once_if_there_is_no_other(database):
    first, second = KeptReplica(database, "a"), KeptReplica(database, "b")
    first.keeper.edges = 2
    run(database, first, seconds=1.0)
    run(database, second, seconds=LEASE_TTL_S + 0.1)
    assert database.owned("b") == ALL


def test_partitions_of_a_dead_replica_are_taken_over_when_its_lease_ends_and_not_earlier(database):
    first, second = two_replicas(database)
    first.look()
    owned, died_at = database.owned("a"), database.now
    run(database, second, seconds=LEASE_TTL_S - 0.001)
    assert database.owned("a") == owned
    run(database, second, seconds=0.1)
    assert database.owned("b") == ALL
    assert database.now < died_at + LEASE_TTL_S + 0.2
    assert second.table.takes[-1] == (owned, {"a"})


def test_a_takeover_raises_the_epochs(database):
    _, second = two_replicas(database)
    before = {each: database.rows[each].epoch for each in database.owned("a")}
    run(database, second, seconds=2 * LEASE_TTL_S)
    assert {each: second.keeper.epochs[each] for each in before} == {each: epoch + 1 for each, epoch in before.items()}


def test_a_paused_replica_finds_its_partitions_lost_when_it_resumes(database):
    first, second = two_replicas(database)
    owned = database.owned("a")
    run(database, second, seconds=5.0)
    assert first.served.keys() == owned  # it does not know
    first.look()
    assert Lost(frozenset(owned)) in first.events
    assert first.served == {}
    run(database, first, second, seconds=3.0)
    assert len(first.served) == len(second.served) == PARTITIONS // 2


def test_a_lost_partition_is_not_taken_again_before_its_release_is_committed(database):
    """Until then, a change of the lost epoch may wait, which would be committed under the new epoch."""
    first, second = two_replicas(database)
    lost = database.owned("a")
    run(database, second, seconds=5.0)
    database.now += 2 * LEASE_TTL_S  # the second one dies
    first.look()
    assert Lost(frozenset(lost)) in first.events
    assert first.served.keys() == ALL - lost
    first.look()
    assert first.served.keys() == ALL - lost
    first.release()
    first.look()
    assert first.served.keys() == ALL


def test_a_commit_that_finds_partitions_lost_reports_them_once(database):
    first, second = two_replicas(database)
    lost = database.owned("a")
    run(database, second, seconds=5.0)
    first.keeper.lose(lost)
    first.keeper.lose(lost)
    first.look()
    assert kinds(first).count(Lost) == 1


def test_a_replica_that_drains_gives_all_partitions_and_then_has_handed_over(database):
    first, second = two_replicas(database)
    first.keeper.drain()
    assert first.keeper.due <= database.now
    run(database, first, second, seconds=NOTICE_S + 1.0)
    assert first.has_handed_over
    assert database.owned("b") == second.served.keys() == ALL


def test_a_replica_that_drains_first_announces_it(database):
    first, second = two_replicas(database)
    first.keeper.drain()
    run(database, first, second, seconds=NOTICE_S - 0.05)
    assert first.served.keys() == database.owned("a")
    assert len(first.served) == PARTITIONS // 2


def test_a_replica_that_drains_alone_has_handed_over_at_once_and_keeps_its_partitions(database):
    replica = KeptReplica(database, "a")
    replica.look()
    replica.keeper.drain()
    replica.look()
    assert replica.has_handed_over
    assert database.owned("a") == replica.served.keys() == ALL


def test_a_draining_replica_takes_nothing_from_a_dead_one(database):
    first, second = two_replicas(database)
    takes = len(first.table.takes)
    first.keeper.drain()
    database.now += 2 * LEASE_TTL_S
    first.look()
    assert len(first.table.takes) == takes
    assert database.owned("b") == second.served.keys()


def test_partitions_whose_state_could_not_be_read_are_taken_again(database):
    replica = KeptReplica(database, "a")
    database.fails_to_read = True
    with pytest.raises(TableUnavailable):
        replica.look()
    assert replica.served == replica.keeper.epochs == {}
    database.fails_to_read = False
    replica.look()
    assert replica.served == dict.fromkeys(range(PARTITIONS), 2)


def test_replicas_without_a_lease_may_renew_it_first_after_an_outage_of_the_store(database):
    first, second = two_replicas(database)
    owned = database.owned("a")
    database.now += 10.0
    second.keeper.takes_lapsed_at = database.now + LEASE_TTL_S
    second.look()
    assert database.owned("a") == owned
    first.look()
    run(database, first, second, seconds=2.0)
    assert database.owned("a") == owned
    assert Lost not in kinds(first)


def test_partitions_of_a_process_of_the_former_release_are_not_taken_while_their_own_lease_lasts(database):
    database.rows[5] = PartitionRow("former", 3, is_leased=True)
    replica = KeptReplica(database, "a")
    replica.look()
    assert database.owned("former") == {5}
    database.rows[5] = PartitionRow("former", 3)
    replica.look()
    assert database.owned("a") == ALL


def test_a_change_of_tenants_by_another_process_is_reported_once(database):
    first, _ = two_replicas(database)
    database.catalog_version += 1
    first.look()
    first.look()
    assert kinds(first).count(CatalogChanged) == 1


actions = st.lists(
    st.tuples(
        st.sampled_from(("look", "release", "wait", "pause", "die", "join", "drain")),
        st.integers(0, 3),
        st.floats(0.01, 1.0),
    ),
    max_size=60,
)


def assert_served_by_owner(database, replicas):
    """No partition that a replica serves with its present epoch belongs to another one."""
    for replica in replicas:
        for partition, epoch in replica.served.items():
            row = database.rows[partition]
            assert row.epoch > epoch or row[:2] == (replica.owner, epoch)


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(actions)
def test_replicas_that_pause_die_join_and_drain_end_with_even_shares(steps):
    database, joined = PartitionDatabase(), 1
    replicas = [KeptReplica(database, "r0")]
    for action, number, seconds in steps:
        replica = replicas[number % len(replicas)]
        has_successor = any(not each.keeper.is_draining for each in replicas if each is not replica)
        match action:
            case "look":
                replica.look()
            case "release":
                replica.release()
            case "wait":
                run(database, *replicas, seconds=seconds)
            case "pause":
                others = [each for each in replicas if each is not replica]
                if others:
                    run(database, *others, seconds=4 * seconds)
            case "die" if has_successor:
                replicas.remove(replica)
            case "join" if len(replicas) < 4:
                replicas.append(KeptReplica(database, f"r{joined}"))
                joined += 1
            case "drain" if has_successor:
                replica.keeper.drain()
        assert_served_by_owner(database, replicas)
    run(database, *replicas, seconds=15.0)
    for replica in replicas:
        assert replica.served == replica.keeper.epochs
        assert replica.served.keys() == database.owned(replica.owner)
    counts = [len(each.served) for each in replicas if not each.keeper.is_draining]
    assert sum(len(each.served) for each in replicas) == sum(counts) == PARTITIONS
    assert max(counts) - min(counts) <= 1
    for replica in replicas:
        assert replica.has_handed_over == replica.keeper.is_draining
