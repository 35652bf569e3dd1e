"""Timers against a plain dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.worker.runs.timers import Timers

TIMES_S = st.integers(0, 50).map(float)
TIMER_KEYS = st.integers(0, 9)
TIMER_CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), TIMER_KEYS, TIMES_S),
        st.tuples(st.just("drop"), TIMER_KEYS, st.none()),
        st.tuples(st.just("due"), st.none(), TIMES_S),
    ),
    max_size=300,
)


@given(TIMER_CALLS)
def test_exactly_the_timers_set_last_and_not_cancelled_are_due(calls):
    timers, plain = Timers(), {}
    for verb, key, at in calls:
        if verb == "set":
            timers.set(key, at)
            plain[key] = at
        elif verb == "drop":
            timers.cancel(key)
            plain.pop(key, None)
        else:
            due = timers.pop_due(at)
            assert sorted(due) == sorted(each for each, moment in plain.items() if moment <= at)
            moments = [plain.pop(each) for each in due]
            assert moments == sorted(moments)
        assert timers.next == min(plain.values(), default=None)
        assert len(timers) == len(plain)


def test_cancelled_timers_do_not_accumulate():
    timers = Timers()
    for number in range(10_000):
        timers.set(number, 1e9)
        timers.cancel(number)
    assert len(timers._heap) <= 65
