"""The bucket of one limit: it never grants more than the limit, regardless of settlements."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linear_bucket import LinearBucket
from penstock.auth.quota.bucket import MINUTE_US, Bucket, TakeRun, to_micros

START_UNIX_S = 1_800_000_000.0
MAX_RUNS_PER_UNSETTLED = 4  # a tree has room for twice its runs, rounded up to a power of two


def test_a_full_bucket_grants_a_minutes_worth_at_once_and_then_the_exact_wait():
    bucket = Bucket(60)
    bucket.spend(60, START_UNIX_S)
    assert bucket.wait(1, START_UNIX_S) == 1.0
    assert bucket.wait(30, START_UNIX_S) == 30.0
    assert bucket.wait(1, START_UNIX_S + 1.0) == 0.0
    assert bucket.wait(2, START_UNIX_S + 1.0) == 1.0


def test_an_amount_above_the_limit_never_fits():
    assert Bucket(60).wait(61, START_UNIX_S) is None


def test_the_returned_wait_suffices_and_a_microsecond_less_does_not():
    bucket = Bucket(7_001)
    bucket.spend(7_000, START_UNIX_S)
    wait = bucket.wait(1_000, START_UNIX_S)
    assert bucket.wait(1_000, START_UNIX_S + wait) == 0.0
    assert bucket.wait(1_000, START_UNIX_S + wait - 0.000_001) == 0.000_001


def test_unused_tokens_can_be_taken_at_once():
    bucket = Bucket(60)
    take = bucket.take(60, START_UNIX_S)
    bucket.settle(take, 25)
    assert bucket.wait(25, START_UNIX_S) == 0.0
    assert bucket.wait(26, START_UNIX_S) == 1.0


def test_a_late_settlement_does_not_save_tokens_beyond_the_burst():
    bucket = Bucket(60)
    unused = bucket.take(60, START_UNIX_S)
    bucket.take(30, START_UNIX_S + 30.0)
    bucket.settle(unused, 60)  # the bucket was full until 30 were taken
    assert bucket.wait(30, START_UNIX_S + 30.0) == 0.0
    assert bucket.wait(31, START_UNIX_S + 30.0) == 1.0


def test_settling_a_take_of_another_bucket_has_no_effect():
    bucket = Bucket(60)
    bucket.spend(60, START_UNIX_S)
    bucket.settle(TakeRun(to_micros(START_UNIX_S), 60), 60)
    assert bucket.wait(1, START_UNIX_S) == 1.0


def test_a_resized_bucket_lacks_the_same_amount():
    bucket = Bucket(60)
    bucket.spend(60, START_UNIX_S)
    bucket.set_limit(120, START_UNIX_S)
    assert bucket.wait(61, START_UNIX_S) == 0.5
    assert bucket.wait(60, START_UNIX_S) == 0.0
    bucket.set_limit(30, START_UNIX_S)
    assert bucket.wait(1, START_UNIX_S) == 62.0  # 60 are lacking, 29 may be


def test_what_was_taken_before_a_resize_is_given_back_in_full():
    bucket = Bucket(60)
    takes = [bucket.take(30, START_UNIX_S), bucket.take(30, START_UNIX_S)]
    bucket.set_limit(120, START_UNIX_S + 10.0)
    bucket.settle(takes[1], 30)
    assert bucket.available(START_UNIX_S + 10.0) == 100  # 30 were taken and 10 of them have been filled
    bucket.settle(takes[0], 30)
    assert bucket.available(START_UNIX_S + 10.0) == 120


def test_the_state_after_a_restart_never_lacks_less():
    bucket = Bucket(7_001)
    bucket.spend(6_500, START_UNIX_S)
    restored = Bucket(7_001, full_at=bucket.full_at)
    assert 0 <= to_micros(restored.wait(1_000, START_UNIX_S)) - to_micros(bucket.wait(1_000, START_UNIX_S)) <= 1


@given(
    per_minute=st.integers(1, 10_000), amounts=st.lists(st.integers(0, 20_000), max_size=5), later=st.integers(0, 10**9)
)
def test_the_state_that_callers_see_is_what_is_available_and_the_time_until_it_is_full(per_minute, amounts, later):
    bucket, now = Bucket(per_minute), START_UNIX_S + later / 1e6
    for amount in amounts:
        bucket.take(amount, START_UNIX_S)
    remaining, reset_millis = bucket.state(now)
    assert remaining == bucket.available(now)
    assert reset_millis == -(-max(0, bucket.full_at - to_micros(now)) // 1_000)


def test_a_bucket_keeps_only_runs_that_can_still_change():
    bucket = Bucket(60)
    for second in range(1_000):
        bucket.take(1, START_UNIX_S + 2 * second)
    assert len(bucket._runs) == 1


BUCKET_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.sampled_from([1, 500_000, 1_000_000, 4_000_000, 30_000_000])),  # µs
        st.tuples(st.just("take"), st.integers(0, 20)),
        st.tuples(st.just("settle"), st.integers(0, 9), st.integers(0, 20)),
    ),
    min_size=10,
    max_size=60,
)


@settings(max_examples=400)
@given(per_minute=st.sampled_from([30, 60, 61]), steps=BUCKET_STEPS)
def test_the_state_is_as_if_each_take_had_been_of_the_used_amount(per_minute, steps):
    bucket, at = Bucket(per_minute), to_micros(START_UNIX_S)
    takes, unsettled, most_unsettled = [], [], 0  # [start in µs, amount]; index and run
    for step, first, *rest in steps:
        if step == "wait":
            at += first
        elif step == "take" and bucket.wait(first, at / 1e6) == 0.0:
            unsettled.append((len(takes), bucket.take(first, at / 1e6)))
            takes.append([at, first])
        elif step == "settle" and unsettled:
            position, take = unsettled.pop(first % len(unsettled))
            unused = min(rest[0], takes[position][1])
            bucket.settle(take, unused)
            takes[position][1] -= unused
        most_unsettled = max(most_unsettled, len(unsettled))
        full_at = 0
        for start, amount in takes:
            full_at = max(full_at, start * per_minute) + amount * MINUTE_US
        assert max(bucket.full_at, at) == max(-(-full_at // per_minute), at)
        assert len(bucket._runs) <= MAX_RUNS_PER_UNSETTLED * (most_unsettled + 2)
        assert_never_overspent(takes, per_minute)


@settings(max_examples=300)
@given(
    per_minute=st.sampled_from([1, 30, 60, 61, 10_000_019]),
    full_at=st.integers(0, 90_000_000),
    steps=st.lists(
        st.tuples(st.sampled_from("wtttss"), st.integers(0, 40_000_000), st.integers(0, 30)), min_size=5, max_size=120
    ),
)
def test_every_result_is_that_of_the_linear_bucket(per_minute, full_at, steps):
    """Takes may exceed the limit, as those of fallback admissions, and times may be those of an earlier clock."""
    buckets = [each(per_minute, full_at=to_micros(START_UNIX_S) + full_at) for each in (Bucket, LinearBucket)]
    at, unsettled = to_micros(START_UNIX_S), []
    for step, first, second in steps:
        now = at / 1e6
        if step == "w":
            at += first - 1_000_000
        elif step == "t":
            unsettled.append((second, [each.take(second, now) for each in buckets]))
        elif unsettled:
            amount, runs = unsettled.pop(first % len(unsettled))
            for bucket, run in zip(buckets, runs, strict=True):
                bucket.settle(run, min(second, amount))
        assert_alike(*buckets, now)
    for each in buckets:
        each.set_limit(77, at / 1e6)
    for amount, runs in unsettled:
        assert_alike(*buckets, at / 1e6)
        for bucket, run in zip(buckets, runs, strict=True):
            bucket.settle(run, amount // 2)
    assert_alike(*buckets, at / 1e6)


def test_a_day_of_a_busy_tenant_is_that_of_the_linear_bucket():
    rng, now, unsettled = random.Random(5), START_UNIX_S, []
    buckets = [Bucket(600_000), LinearBucket(600_000)]
    for _ in range(6_000):
        now += rng.expovariate(20.0)
        if len(unsettled) > rng.randrange(600):
            amount, runs = unsettled.pop(rng.randrange(len(unsettled)))
            unused = rng.randrange(amount + 1)
            for bucket, run in zip(buckets, runs, strict=True):
                bucket.settle(run, unused)
        amount = rng.randrange(1, 1_200)
        unsettled.append((amount, [each.take(amount, now) for each in buckets]))
        assert_alike(*buckets, now)


def assert_alike(bucket, reference, now):
    assert (bucket._full_at, bucket.full_at) == (reference._full_at, reference.full_at)
    assert bucket.available(now) == reference.available(now)
    for amount in (0, 1, 29):
        assert bucket.wait(amount, now) == reference.wait(amount, now)


class CountingList(list):
    """Counts the nodes that are changed."""

    changes = 0

    def __setitem__(self, index, value):
        CountingList.changes += 1
        super().__setitem__(index, value)


def test_a_settlement_with_20_000_takes_under_way_changes_as_many_nodes_as_the_tree_has_levels():
    bucket = Bucket(10_000_000)
    takes = [bucket.take(400, START_UNIX_S + number / 1e3) for number in range(20_000)]
    bucket._latest = CountingList(bucket._latest)
    for run in takes[::100]:
        CountingList.changes = 0
        bucket.settle(run, 200)
        assert CountingList.changes <= 17  # 2**16 leaves
    assert bucket.available(START_UNIX_S + 20.0) == 10_000_000 - (20_000 * 400 - 200 * 200) + 20 * 10_000_000 // 60


def test_takes_that_are_settled_at_once_need_no_room():
    bucket = Bucket(1_000_000)
    for number in range(10_000):
        bucket.spend(1, START_UNIX_S + number / 1e6)
    assert len(bucket._sums) <= 16


def assert_never_overspent(takes, per_minute):
    """Check that no window uses more than a burst and the refill."""
    for first in range(len(takes)):
        used = 0
        for start, amount in takes[first:]:
            used += amount
            assert used * MINUTE_US <= per_minute * (MINUTE_US + start - takes[first][0])


@pytest.mark.parametrize("seconds", [0.000_001, 1_700_000_000.123_457, START_UNIX_S])
def test_times_are_integer_microseconds(seconds):
    assert to_micros(seconds) == round(seconds * 1_000_000)
    assert to_micros(to_micros(seconds) / 1_000_000) == to_micros(seconds)


@given(takes=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30_000_000)), max_size=6), limit=st.integers(1, 100))
def test_the_available_amount_can_be_taken_at_once_and_no_more(takes, limit):
    bucket, now = Bucket(limit), to_micros(START_UNIX_S)
    for amount, pause in takes:
        bucket.take(amount, now / 1_000_000)  # also beyond the limit, as for a fallback admission
        now += pause
    left = bucket.available(now / 1_000_000)
    assert 0 <= left <= limit
    assert bucket.wait(left + 1, now / 1_000_000) != 0.0
    assert not left or bucket.wait(left, now / 1_000_000) == 0.0
