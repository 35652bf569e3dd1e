"""Auth fallback: outage detection, cached identities, token grants and deferred reservations."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.chassis.clocks import StallFreeClock
from penstock.edge.auth_fallback.fallback import MAX_COUNTED_STEP_S
from penstock.edge.auth_fallback.identity_cache import IdentityCache
from penstock.edge.auth_fallback.outage import RESPONSE_TIMEOUT_S, OutageDetector
from penstock.edge.auth_fallback.pending import DeferredReservation, DeferredReservations, PendingReservations
from penstock.edge.lifecycle.effects import Settle
from penstock.mesh.v1.admission_pb2 import AdmitRequest, Credential, Identity, Reserve
from penstock.v1.inference_pb2 import PRIORITY_BATCH, PRIORITY_INTERACTIVE, PRIORITY_STANDARD, PRIORITY_UNSPECIFIED

CREDENTIAL = Credential(bearer="pk_anna", loopback=True)
THRESHOLD_S = 1.0


def silence() -> OutageDetector:
    """Return an outage detector after one response of auth."""
    found = OutageDetector(outage_after=THRESHOLD_S)
    found.on_connected(0.0)
    found.on_request_sent("first", 0.0)
    found.on_response(0.0, "first")
    return found


def test_auth_is_unreachable_once_its_stream_is_down_for_the_threshold():
    found = silence()
    found.on_disconnected(10.0)
    assert not found.is_unreachable(10.999)
    assert found.is_unreachable(11.0)
    assert found.outage_duration(15.0) == 5.0


def test_auth_that_drains_is_unreachable_at_once():
    found = silence()
    found.on_disconnected(10.0, on_purpose=True)
    assert found.is_unreachable(10.0)
    assert found.outage_duration(15.0) == 5.0
    found.on_connected(16.0)
    assert not found.is_unreachable(16.0)


def test_auth_without_a_store_is_unreachable_at_once_also_if_it_responds():
    found = silence()
    found.on_request_sent("a", 10.0)
    found.on_store_state(10.5, is_unavailable=True)
    assert found.is_unreachable(10.5)
    found.on_response(10.6, "a")
    found.check(20.0)
    assert found.is_unreachable(20.0)
    assert found.outage_duration(20.0) == 10.0
    assert found.is_timing
    found.on_store_state(30.0, is_unavailable=False)
    assert not found.is_unreachable(1e9)
    assert found.outage_duration(1e9) == 0.0


def test_requests_without_an_answer_do_not_outlive_the_outage_of_the_store():
    found = silence()
    found.on_request_sent("a", 10.0)
    found.on_store_state(10.5, is_unavailable=True)
    found.on_store_state(30.0, is_unavailable=False)
    assert not found.is_unreachable(30.0)
    found.on_store_state(40.0, is_unavailable=False)
    assert not found.is_unreachable(1e9)


def test_an_auth_that_ends_without_a_store_is_unreachable_at_once_and_the_next_one_is_not():
    found = silence()
    found.on_store_state(10.0, is_unavailable=True)
    found.on_disconnected(12.0)
    assert found.is_unreachable(12.0)
    assert found.outage_duration(15.0) == 5.0
    found.on_connected(16.0)
    assert not found.is_unreachable(16.0)


def test_an_edge_without_a_response_does_not_decide_for_an_auth_without_a_store():
    found = OutageDetector(outage_after=THRESHOLD_S)
    found.on_connected(0.0)
    found.on_store_state(0.0, is_unavailable=True)
    assert not found.is_unreachable(0.5)


def test_auth_is_unreachable_if_it_does_not_answer_pending_requests():
    found = silence()
    found.on_request_sent("a", 10.0)
    found.on_request_sent("b", 10.9)
    assert (found.is_unreachable(10.9), found.is_unreachable(11.0)) == (False, True)


def test_auth_that_answers_other_requests_is_reachable():
    found = silence()
    found.on_request_sent("slow", 10.0)
    for tenth in range(1, 50):
        found.on_request_sent("quick", 10.0 + tenth / 10)
        found.on_response(10.0 + tenth / 10, "quick")
        assert not found.is_unreachable(10.05 + tenth / 10)
    assert found.is_unreachable(16.0)


def test_an_unanswered_request_is_dropped_after_the_response_timeout():
    found = silence()
    found.on_request_sent("forgotten", 10.0)
    found.on_request_sent("a", 20.0)
    found.on_response(20.0, "a")
    assert found.is_unreachable(21.0)
    found.on_request_sent("b", 10.0 + RESPONSE_TIMEOUT_S)
    found.on_response(10.0 + RESPONSE_TIMEOUT_S, "b")
    assert not found.is_unreachable(1e9)


def test_an_idle_auth_is_reachable():
    found = silence()
    assert not found.is_unreachable(1e9)
    found.on_request_sent("a", 10.0)
    found.on_response(10.5, "a")
    assert not found.is_unreachable(1e9)
    assert found.outage_duration(1e9) == 0.0


def test_no_outage_is_declared_before_the_first_response():
    found = OutageDetector(outage_after=THRESHOLD_S)
    for begin in (0.0, 10.0):
        found.on_connected(begin)
        found.on_request_sent("a", begin)
        assert not found.is_unreachable(begin + 9.0)
        found.on_disconnected(begin + 9.0)
        assert not found.is_unreachable(begin + 10.0)
    found.on_connected(20.0)
    found.on_request_sent("a", 20.0)
    found.on_response(20.1, "a")
    found.on_disconnected(30.0)
    assert found.is_unreachable(31.0)


def test_a_reconnected_stream_restarts_the_threshold_but_does_not_end_the_outage():
    found = silence()
    found.on_disconnected(10.0)
    found.on_connected(40.0)
    found.on_request_sent("a", 40.0)
    assert not found.is_unreachable(40.9)
    found.on_disconnected(40.9)
    assert found.is_unreachable(41.0)
    assert found.outage_duration(80.0) == 70.0
    found.on_connected(81.0)
    found.on_request_sent("a", 81.0)
    found.on_response(81.1, "a")
    found.on_disconnected(90.0)
    assert found.outage_duration(91.0) == 1.0


def test_an_idle_outage_ends_once_auth_stays_connected():
    found = silence()
    found.on_disconnected(10.0)
    found.on_connected(12.0)
    found.on_request_sent("a", 300.0)
    assert found.outage_duration(300.5) == 0.5


def test_the_outage_is_checked_from_the_first_pending_request_to_the_response():
    found = OutageDetector(outage_after=THRESHOLD_S)
    found.on_connected(0.0)
    found.on_request_sent("a", 0.0)
    assert not found.is_timing  # an edge that auth never answered waits, however long
    found.on_response(0.1, "a")
    assert not found.is_timing
    found.on_disconnected(10.0)
    assert found.is_timing
    found.on_connected(12.0)
    found.check(12.9)
    assert found.is_timing
    found.check(13.0)
    assert not found.is_timing
    assert found.outage_duration(13.0) == 0.0
    found.on_request_sent("b", 20.0)
    assert found.is_timing


def away_after(polls: list[float], *, since: float) -> float | None:
    """Return when an auth lost at `since` counts as unreachable, checked at the given times. None if it never does."""
    found, ran = silence(), StallFreeClock(MAX_COUNTED_STEP_S)
    found.on_disconnected(ran.at(since))
    return next((now for now in polls if found.is_unreachable(ran.at(now))), None)


def test_a_stall_counts_at_most_one_step_of_silence():
    before = [10.0 + look / 8 for look in range(1, 4)]
    after = [14.0 + look / 8 for look in range(20)]
    assert (
        away_after([*before, *after], since=10.0) == 14.375
    )  # 0.375 s before the stall, one step, and 0.375 s after it


@given(st.lists(st.floats(0.001, 20.0), min_size=1, max_size=60))
def test_auth_is_not_unreachable_before_the_edge_has_run_for_the_threshold(gaps):
    polls = list(itertools.accumulate(gaps, initial=10.0))[1:]
    found = away_after(polls, since=10.0)
    run_times = list(itertools.accumulate(min(gap, MAX_COUNTED_STEP_S) for gap in gaps))
    expected = next((now for now, passed in zip(polls, run_times, strict=True) if passed >= THRESHOLD_S), None)
    if min(abs(passed - THRESHOLD_S) for passed in run_times) > 1e-9:  # except for rounding
        assert found == expected


def test_an_outage_without_stalls_lasts_by_the_clock():
    found, ran = silence(), StallFreeClock(MAX_COUNTED_STEP_S)
    found.on_disconnected(ran.at(10.0))
    for look in range(1, 400):
        assert found.outage_duration(ran.at(10.0 + look / 8)) == look / 8


def test_orphaned_reservations_are_recorded_until_answered():
    unanswered, frames = (
        PendingReservations(max_entries=3),
        {each: AdmitRequest(reserve=Reserve(request_id=each)) for each in "abcd"},
    )
    for each in "abac":
        unanswered.add(each, frames[each])
    unanswered.remove("c"), unanswered.remove("unknown")
    assert unanswered.orphaned("b".__contains__) == [frames["a"]]
    assert unanswered.orphaned("".__contains__) == [frames["b"], frames["a"]]
    unanswered.add("c", frames["c"]), unanswered.add("d", frames["d"])
    assert (len(unanswered), unanswered.orphaned("".__contains__)) == (3, [frames[each] for each in "acd"])


def callers(**changes) -> IdentityCache:
    return IdentityCache(**{"max_entries": 3, "ttl": 600.0, "pepper": b"p" * 32} | changes)


def identity(tenant="acme", priority=PRIORITY_STANDARD) -> Identity:
    return Identity(tenant_id=tenant, priority=priority, weight=2.0, cache_salt=b"s" * 16, key_id="k")


def credential(number: int) -> Credential:
    return Credential(bearer=f"pk_{number}")


def test_an_identity_is_cached_by_credential_and_loopback_until_its_ttl():
    cache = callers()
    cache.record_admitted(CREDENTIAL, identity(), PRIORITY_UNSPECIFIED, 10.0)
    assert cache.find(CREDENTIAL, PRIORITY_UNSPECIFIED, 610.0) == identity()
    assert cache.find(CREDENTIAL, PRIORITY_UNSPECIFIED, 610.1) is None
    assert cache.find(Credential(bearer="pk_anna"), PRIORITY_UNSPECIFIED, 10.0) is None
    assert cache.find(Credential(bearer="pk_ann", loopback=True), PRIORITY_UNSPECIFIED, 10.0) is None


def test_the_identity_cache_contains_no_key():
    cache = callers()
    cache.record_admitted(CREDENTIAL, identity(), PRIORITY_UNSPECIFIED, 10.0)
    assert b"anna" not in b"".join(cache._identities)
    other = callers(pepper=b"q" * 32)
    other.record_admitted(CREDENTIAL, identity(), PRIORITY_UNSPECIFIED, 10.0)
    assert not cache._identities.keys() & other._identities.keys()


@pytest.mark.parametrize(
    ("cached", "requested", "granted"),
    [
        ([(PRIORITY_UNSPECIFIED, PRIORITY_STANDARD)], PRIORITY_INTERACTIVE, PRIORITY_STANDARD),
        ([(PRIORITY_UNSPECIFIED, PRIORITY_STANDARD)], PRIORITY_BATCH, PRIORITY_BATCH),
        ([(PRIORITY_BATCH, PRIORITY_BATCH)], PRIORITY_UNSPECIFIED, PRIORITY_BATCH),
        (
            [(PRIORITY_UNSPECIFIED, PRIORITY_STANDARD), (PRIORITY_BATCH, PRIORITY_BATCH)],
            PRIORITY_UNSPECIFIED,
            PRIORITY_STANDARD,
        ),
        (
            [(PRIORITY_UNSPECIFIED, PRIORITY_INTERACTIVE), (PRIORITY_UNSPECIFIED, PRIORITY_BATCH)],
            PRIORITY_INTERACTIVE,
            PRIORITY_BATCH,
        ),
    ],
)
def test_a_cached_identity_never_has_a_higher_class_than_granted(cached, requested, granted):
    cache = callers()
    for cached_request, cached_class in cached:
        cache.record_admitted(CREDENTIAL, identity(priority=cached_class), cached_request, 10.0)
    assert cache.find(CREDENTIAL, requested, 10.0).priority == granted


def test_an_identified_caller_is_known_but_not_valid_for_fallback():
    known = callers()
    known.record_identified(CREDENTIAL, identity(), 10.0)
    assert known.find_known(CREDENTIAL, 610.0) == identity()
    assert known.find_known(CREDENTIAL, 610.1) is None
    assert known.find(CREDENTIAL, PRIORITY_UNSPECIFIED, 10.0) is None
    known.invalidate(CREDENTIAL)
    assert known.find_known(CREDENTIAL, 10.0) is None


def test_identified_callers_are_bounded():
    known = callers()
    for number in range(5):
        known.record_identified(credential(number), identity(), 10.0)
    assert [bool(known.find_known(credential(number), 10.0)) for number in range(5)] == [False] * 2 + [True] * 3


def test_a_rejected_caller_is_removed_and_a_tenant_at_its_limits_loses_its_grant():
    cache = callers()
    cache.record_admitted(CREDENTIAL, identity(), PRIORITY_UNSPECIFIED, 10.0)
    cache.grant("acme", 100)
    cache.revoke_grant(CREDENTIAL)
    assert not cache.acquire("acme", 1)
    cache.invalidate(CREDENTIAL)
    assert cache.find(CREDENTIAL, PRIORITY_UNSPECIFIED, 10.0) is None


def test_the_least_recently_admitted_identity_is_evicted_first():
    cache = callers()
    for number in (1, 2, 3, 1, 4):
        cache.record_admitted(credential(number), identity(f"t{number}"), PRIORITY_UNSPECIFIED, 10.0)
    assert [bool(cache.find(credential(number), PRIORITY_UNSPECIFIED, 10.0)) for number in (1, 2, 3, 4)] == [
        *(True, False, True, True)
    ]


def test_a_grant_is_taken_in_full_or_not_at_all():
    cache = callers()
    cache.grant("acme", 100)
    assert cache.acquire("acme", 60)
    assert not cache.acquire("acme", 41)
    assert cache.acquire("acme", 40)
    cache.release("acme", 5)
    assert cache.acquire("acme", 5)
    assert not cache.acquire("acme", 0)
    assert not cache.acquire("unknown", 0)


class Outage(RuleBasedStateMachine):
    """An edge and an auth that fails and recovers: admissions stay within the grant, and each is recorded once."""

    TENANTS = ("acme", "blue")

    def __init__(self):
        super().__init__()
        self.callers = callers()
        self.deferred = DeferredReservations(max_entries=4)
        self.granted = dict.fromkeys(self.TENANTS, 0)
        self.running = {}  # ticket -> tenant, tokens
        self.ended = {}  # ticket -> settled tokens that auth has not recorded
        self.recorded = {}  # ticket -> spent
        self.number = 0

    @rule(tenant=st.sampled_from(TENANTS), tokens=st.integers(0, 50))
    def grant(self, tenant, tokens):
        """Grants tokens as an auth does that has recorded everything except the deferred reservations."""
        self.callers.grant(tenant, tokens - self.deferred.tokens_of(tenant))
        self.granted[tenant] = max(tokens, self._open(tenant))

    @rule(tenant=st.sampled_from(TENANTS), tokens=st.integers(0, 50))
    def admit(self, tenant, tokens):
        if self.deferred.is_full or not self.callers.acquire(tenant, tokens):
            return
        self.number += 1
        ticket = f"t{self.number}"
        frame = AdmitRequest(reserve=Reserve(request_id=ticket))
        self.deferred.add(ticket, DeferredReservation(tenant, tokens, frame))
        self.running[ticket] = tenant, tokens

    @rule(number=st.integers(1, 30), share=st.floats(0, 1))
    def end(self, number, share):
        tenant, tokens = self.running.pop(f"t{number}", ("", 0))
        if not tenant or f"t{number}" not in self.deferred:
            return
        spent = Settle(0, int(tokens * share), "stop")
        self.callers.release(*self.deferred.settle(f"t{number}", spent))
        self.ended[f"t{number}"] = tenant, spent

    @rule(number=st.integers(1, 30))
    def record(self, number):
        entry = self.deferred.pop(f"t{number}")
        if entry is None:
            return
        assert f"t{number}" not in self.recorded
        _, spent = self.ended.pop(f"t{number}", ("", None))
        assert entry.settlement == spent
        self.recorded[f"t{number}"] = spent

    def _open(self, tenant):
        open_tokens = sum(
            tokens for ticket, (owner, tokens) in self.running.items() if owner == tenant and ticket in self.deferred
        )
        return open_tokens + sum(spent.output_tokens for owner, spent in self.ended.values() if owner == tenant)

    @invariant()
    def no_tenant_has_more_than_was_granted(self):
        for tenant in self.TENANTS:
            assert self._open(tenant) == self.deferred.tokens_of(tenant)
            assert self._open(tenant) <= self.granted[tenant]

    @invariant()
    def every_admission_is_deferred_or_recorded(self):
        assert len(self.deferred) <= 4
        assert set(self.deferred.frames) | set(self.recorded) == {f"t{number + 1}" for number in range(self.number)}
        assert not set(self.deferred.frames) & set(self.recorded)


Outage.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestOutage = Outage.TestCase
