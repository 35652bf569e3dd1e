"""The shared database of a world, its replicas, and the checks of worlds with several auth processes."""

import pytest

from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.reservation import Charge, Reservation, ReservationRequest
from penstock.auth.quota.tenant_quota import Balance
from penstock.auth.store.store import Barrier, Charged, Lost, PartitionsLost, PutTenant, Release, Reserved, Taken
from penstock.faults.checks.allowed_failures import RECOVERY_S, Interval
from penstock.faults.checks.auth_absence import TAKEOVER_S, Absence, auth_lost_intervals
from penstock.faults.checks.replicas import check_token_limits
from penstock.faults.mutations import plan_world
from penstock.faults.plan import PlannedTenant, PlanOverrides
from penstock.faults.world.stores.disk import DiskFull
from penstock.faults.world.stores.replica_store import Replica
from penstock.faults.world.stores.shared_database import SharedDatabase
from penstock.faults.world.world import World
from penstock.mesh.partitions import PARTITIONS, partition_of

LONG_PAUSE_S = 5.0
TENANT = "acme"


@pytest.fixture
def database():
    database = SharedDatabase(World(1), 1)
    database.put_catalog([PutTenant(Tenant(tenant_id=TENANT, concurrent_requests=1, tokens_per_minute=100))])
    return database


def replica_of(database, owner, events):
    replica = Replica(database, owner, database.world.add_loop(owner))
    state = replica.open()
    replica.keeper.on_event = events.append
    return replica, state


def reservation(name, tokens=10):
    request = ReservationRequest(
        request_id=name,
        tenant_id=TENANT,
        key_id="key",
        edge_id="edge",
        model="model",
        prompt_tokens=tokens,
        max_output_tokens=0,
        answer_id=name,
        emitted_tokens=0,
        fingerprint=b"",
    )
    return Reservation(reservation_id=name, request=request, reserved_at=0.0, expires_at=900.0)


def reserved(name, tokens=10):
    return Reserved(reservation(name, tokens), Balance(TENANT)), lambda _: None


def charged(name, tokens=10):
    charge = Charge(
        reservation=reservation(name, tokens), prompt_tokens=tokens, output_tokens=0, outcome="stop", settled_at=1.0
    )
    return Charged(charge, Balance(TENANT, prompt_tokens=tokens, requests=1)), lambda _: None


def ledger(database):
    return database.connection.execute("SELECT reservation_id, prompt_tokens FROM ledger").fetchall()


def test_a_paused_replica_spends_nothing_of_what_its_successor_gave(database):
    events = []
    first, _ = replica_of(database, "a", events)
    assert first.commit([reserved("one")]) is None
    second, state = replica_of(database, "b", [])
    assert state.reservations == []
    database.world.now += LONG_PAUSE_S  # the first one is paused
    successor_events = []
    second.keeper.on_event = successor_events.append
    second.look()
    (taken,) = (each for each in successor_events if isinstance(each, Taken))
    assert [each.reservation_id for each in taken.state.reservations] == ["one"]
    assert second.commit([charged("one")]) is None

    error = first.commit([charged("one", 7), reserved("two")])

    assert isinstance(error, PartitionsLost)
    assert partition_of(TENANT) in error.partitions
    assert ledger(database) == [("one", 10)]
    assert database.connection.execute("SELECT count(*) FROM reservations").fetchone() == (0,)
    assert events == [Lost(frozenset(range(PARTITIONS)))]
    assert database.violations == []


def test_a_former_owner_confirms_nothing_of_its_partition(database):
    """It does not know what its successor has reserved."""
    first, _ = replica_of(database, "a", [])
    of_partition = [(Barrier(partition_of(TENANT)), lambda _: None)]
    assert first.commit(of_partition) is None
    database.world.now += LONG_PAUSE_S
    replica_of(database, "b", [])
    assert isinstance(first.commit(of_partition), PartitionsLost)
    assert first.commit([(Barrier(), lambda _: None)]) is None


def test_a_change_by_another_process_than_the_owner_is_a_violation(database, monkeypatch):
    monkeypatch.setattr(SharedDatabase, "holds", lambda *_: True)
    first, _ = replica_of(database, "a", [])
    database.world.now += LONG_PAUSE_S
    replica_of(database, "b", [])
    assert first.commit([reserved("one")]) is None
    (violation,) = database.violations
    assert violation.startswith("a, with epoch 1, wrote Reserved of partition 1, which b owns with epoch 2")


def test_a_change_after_the_release_of_its_partition_is_a_violation(database):
    replica, _ = replica_of(database, "a", [])
    assert replica.commit([(Release(frozenset({partition_of(TENANT)})), lambda _: None), reserved("one")]) is None
    assert len(database.violations) == 1


def test_more_concurrent_requests_than_the_tenant_may_have_are_a_violation(database):
    replica, _ = replica_of(database, "a", [])
    assert replica.commit([reserved("one"), charged("one"), reserved("two")]) is None
    assert database.violations == []
    assert replica.commit([reserved("three")]) is None
    assert database.violations == ["acme has 2 concurrent requests, of 1 that it may have"]


def test_more_tokens_than_the_limit_of_the_tenant_are_a_violation(database):
    replica, _ = replica_of(database, "a", [])
    tenants = [PlannedTenant(tenant_id=TENANT, tokens_per_minute=100)]
    replica.commit([charged("one", 100)])
    assert list(check_token_limits(database, tenants, 0.0)) == []
    replica.commit([charged("two", 50)])
    assert [each.kind for each in check_token_limits(database, tenants, 10.0)] == ["limit"]
    assert list(check_token_limits(database, tenants, 30.0)) == []


def test_nothing_is_written_and_no_lease_is_renewed_while_the_disk_is_full(database):
    replica, _ = replica_of(database, "a", [])
    until = database.leases["a"].until
    database.world.now += 0.5
    database.is_full = True
    assert isinstance(replica.commit([reserved("one")]), DiskFull)
    assert isinstance(replica.commit([]), DiskFull)
    assert database.leases["a"].until == until
    database.is_full = False
    assert replica.commit([]) is None
    assert database.leases["a"].until == until + 0.5


def test_half_of_the_worlds_have_several_replicas_and_other_parts_of_their_plans_do_not_change():
    plans = [plan_world(seed) for seed in range(400)]
    several = [each for each in plans if each.shape.auths > 1]
    assert 0.4 < len(several) / len(plans) < 0.6
    assert {each.shape.auths for each in plans} == {1, 2, 3}
    assert all(len(each.tenants) == 1 for each in plans if each.shape.auths == 1)
    for seed in range(50):
        forced = plan_world(seed, PlanOverrides(has_auth_replicas=True))
        assert forced.shape.auths > 1
        assert [each.prompt for each in forced.requests] == [each.prompt for each in plans[seed].requests]
        assert bool(forced.faults) == bool(plans[seed].faults)


def test_the_tenants_of_a_world_have_different_partitions():
    tenants = {each.tenant_id for seed in range(50) for each in plan_world(seed).tenants}
    assert tenants == {"default", "acme", "globex"}
    assert len({partition_of(each) for each in tenants}) == 3


def test_no_absence_of_one_replica_allows_auth_lost():
    for absence in (Absence(1.0, 2.0), Absence(1.0, 6.0), Absence(1.0, 61.0), Absence(1.0, 3.9, is_link=True)):
        assert auth_lost_intervals([[absence], []]) == []


def test_the_absence_of_all_replicas_at_once_allows_auth_lost():
    found = auth_lost_intervals([[Absence(1.0, 3.0)], [Absence(2.0, 2.5)]])
    assert found == [Interval(2.0, 2.5 + RECOVERY_S)]


def test_absences_that_follow_each_other_allow_auth_lost_after_the_wait_for_a_takeover():
    (found,) = auth_lost_intervals([[Absence(1.0, 9.0)], [Absence(4.2, 4.3)], [Absence(5.0, 9.0)]])
    assert found.since == 1.0 + 4.0
    assert found.until == 5.0 + TAKEOVER_S + 2 * RECOVERY_S
