"""The plan of a replica: partitions are shared evenly, and only those move that must."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.auth.partitions.plan import FREE, MAX_GIVEN, RESERVED, plan_partitions
from penstock.mesh.partitions import PARTITIONS

MAX_ROUNDS = PARTITIONS // MAX_GIVEN + 2
NAMES = [f"auth{number}" for number in range(5)]

members_of = st.integers(1, len(NAMES)).map(lambda count: NAMES[:count])
owners_of = st.lists(st.sampled_from([*NAMES, FREE]), min_size=PARTITIONS, max_size=PARTITIONS)


def state(owners, members):
    """Return the owner of each partition; those of replicas that are gone are free."""
    return {partition: owner if owner in members else FREE for partition, owner in enumerate(owners)}


def step(me, members, owners):
    """Apply the plan of one replica. Return whether a partition moved."""
    plan = plan_partitions(me, members, owners)
    owners.update(dict.fromkeys(plan.take, me))
    owners.update(dict.fromkeys(plan.give, FREE))
    return bool(plan.take or plan.give)


def settled(members, owners, order=None):
    """Return the state after all replicas have followed their plans until nothing moves."""
    owners = dict(owners)
    for _ in range(MAX_ROUNDS):
        has_moved = [step(each, members, owners) for each in order or members]
        if not any(has_moved):
            return owners
    raise AssertionError(f"partitions still move after {MAX_ROUNDS} rounds: {Counter(owners.values())}")


def assert_even(members, owners):
    counts = Counter(owners.values())
    assert set(counts) <= set(members)
    assert max(counts.values()) - min(counts[each] for each in members) <= 1


@given(members_of, owners_of, st.randoms(use_true_random=False))
def test_replicas_that_follow_their_plans_converge_to_even_shares_from_any_state(members, owners, rng):
    order = list(members)
    rng.shuffle(order)
    found = settled(members, state(owners, members), order)
    assert_even(members, found)
    for each in members:
        assert plan_partitions(each, members, found) == ((), (), False)


@given(members_of, owners_of)
def test_replicas_that_see_the_same_state_never_take_the_same_partition(members, owners):
    owners = state(owners, members)
    taken = [each for me in members for each in plan_partitions(me, members, owners).take]
    assert len(taken) == len(set(taken))
    assert all(owners[each] == FREE for each in taken)


@given(members_of, owners_of)
def test_all_free_partitions_are_taken_at_once_unless_a_replica_has_too_many(members, owners):
    owners = state(owners, members)
    plans = {me: plan_partitions(me, members, owners) for me in members}
    free = {each for each, owner in owners.items() if owner == FREE}
    assert {each for plan in plans.values() for each in plan.take} == free


@given(members_of, owners_of)
def test_a_replica_gives_a_few_of_its_own_partitions_at_once(members, owners):
    owners = state(owners, members)
    for me in members:
        given_away = plan_partitions(me, members, owners).give
        assert len(given_away) <= MAX_GIVEN
        assert all(owners[each] == me for each in given_away)


@given(members_of, owners_of)
def test_a_draining_replica_ends_with_no_partition(members, owners):
    draining = "draining"
    owners = {each: owner if owner in members else draining for each, owner in enumerate(owners)}
    for _ in range(MAX_ROUNDS):
        for each in (draining, *members):
            step(each, members, owners)
    assert_even(members, owners)


def test_a_draining_replica_keeps_its_partitions_if_no_other_takes_them():
    owners = dict.fromkeys(range(PARTITIONS), "draining")
    assert plan_partitions("draining", [], owners) == ((), (), False)


@given(st.integers(1, 4))
def test_only_the_share_of_a_replica_that_joins_moves(count):
    members = NAMES[:count]
    before = settled(members, dict.fromkeys(range(PARTITIONS), FREE))
    joined = NAMES[: count + 1]
    after = settled(joined, before)
    moved = {each for each in before if before[each] != after[each]}
    assert len(moved) == PARTITIONS // (count + 1)
    assert {after[each] for each in moved} == {NAMES[count]}


@given(st.integers(2, 5))
def test_only_the_partitions_of_a_replica_that_leaves_move(count):
    members = NAMES[:count]
    before = settled(members, dict.fromkeys(range(PARTITIONS), FREE))
    left = {each: FREE if owner == NAMES[0] else owner for each, owner in before.items()}
    after = settled(members[1:], left)
    assert {each for each in before if before[each] != after[each]} == {
        each for each, owner in before.items() if owner == NAMES[0]
    }


def test_a_partition_that_is_being_given_is_neither_taken_nor_given_again():
    owners = {each: RESERVED if each < 4 else "auth0" for each in range(PARTITIONS)}
    plan = plan_partitions("auth0", ["auth0", "auth1"], owners)
    assert not set(plan.give) & set(range(4))
    assert plan_partitions("auth1", ["auth0", "auth1"], owners).take == ()
