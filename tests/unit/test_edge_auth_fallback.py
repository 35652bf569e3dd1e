"""Auth fallback: cached identities, token grants and deferred reservations."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.edge.auth_fallback.identity_cache import IdentityCache, KeyGrant
from penstock.edge.auth_fallback.pending import (
    DeferredReservation,
    DeferredReservations,
    PendingReservations,
    SentReservation,
)
from penstock.edge.lifecycle.effects import Settle
from penstock.mesh.v1.admission_pb2 import AdmitRequest, Credential, Identity, Reserve
from penstock.v1.inference_pb2 import PRIORITY_BATCH, PRIORITY_INTERACTIVE, PRIORITY_STANDARD, PRIORITY_UNSPECIFIED

CREDENTIAL = Credential(bearer="pk_anna", loopback=True)


def test_orphaned_reservations_are_recorded_until_answered():
    unanswered, frames = (
        PendingReservations(max_entries=3),
        {each: SentReservation(AdmitRequest(reserve=Reserve(request_id=each)), 5, "a1") for each in "abcd"},
    )
    for each in "abac":
        unanswered.add(each, frames[each])
    unanswered.remove("c"), unanswered.remove("unknown")
    assert unanswered.orphaned("b".__contains__) == [("a", frames["a"])]
    assert unanswered.orphaned("".__contains__) == [("b", frames["b"]), ("a", frames["a"])]
    unanswered.add("c", frames["c"]), unanswered.add("d", frames["d"])
    assert (len(unanswered), unanswered.orphaned("".__contains__)) == (3, [(each, frames[each]) for each in "acd"])


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


def test_the_identity_of_a_line_is_cached_by_its_delegation():
    cache = callers()
    cache.record_admitted(Credential(delegation=b"d"), identity(), PRIORITY_BATCH, 10.0)
    assert cache.find_known(Credential(delegation=b"d"), 10.0) == identity()
    for other in (Credential(), Credential(delegation=b"e"), Credential(bearer="d")):
        assert cache.find_known(other, 10.0) is None


def test_a_rejected_caller_stays_cached_and_is_marked_until_it_is_admitted_again():
    def is_accepted():
        return cache.find(CREDENTIAL, PRIORITY_UNSPECIFIED, 12.0, accepts_rejected=False) is not None

    cache = callers()
    cache.record_rejected(CREDENTIAL)
    assert not is_accepted()  # it is not cached
    cache.record_admitted(CREDENTIAL, identity(), PRIORITY_UNSPECIFIED, 10.0)
    assert is_accepted()
    cache.record_rejected(CREDENTIAL)
    assert not is_accepted()
    assert cache.find(CREDENTIAL, PRIORITY_UNSPECIFIED, 10.0) == identity()
    cache.record_admitted(CREDENTIAL, identity(), PRIORITY_UNSPECIFIED, 11.0)
    assert is_accepted()


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
    granted(cache, 100)
    cache.revoke_grant(CREDENTIAL)
    assert not cache.acquire("acme", "k", 1, 10.0)
    cache.invalidate(CREDENTIAL)
    assert cache.find(CREDENTIAL, PRIORITY_UNSPECIFIED, 10.0) is None


def test_the_least_recently_admitted_identity_is_evicted_first():
    cache = callers()
    for number in (1, 2, 3, 1, 4):
        cache.record_admitted(credential(number), identity(f"t{number}"), PRIORITY_UNSPECIFIED, 10.0)
    assert [bool(cache.find(credential(number), PRIORITY_UNSPECIFIED, 10.0)) for number in (1, 2, 3, 4)] == [
        *(True, False, True, True)
    ]


def granted(cache, tokens, tenant="acme", key="k", **more):
    """Grants tokens to a tenant and to one of its keys, as the answer of auth to an admission does."""
    cache.grant(tenant, tokens)
    cache.grant_key(key, grant := KeyGrant(tokens, **more))
    return grant


def test_a_grant_is_taken_in_full_or_not_at_all():
    cache = callers()
    grant = granted(cache, 100)
    assert cache.acquire("acme", "k", 60, 10.0) is grant
    assert not cache.acquire("acme", "k", 41, 10.0)
    assert cache.acquire("acme", "k", 40, 10.0)
    cache.release("acme", grant, 5)
    assert cache.acquire("acme", "k", 5, 10.0)
    assert not cache.acquire("acme", "k", 0, 10.0)
    assert not cache.acquire("unknown", "k", 0, 10.0)


def test_a_key_uses_its_own_grant_within_that_of_its_tenant():
    cache = callers()
    granted(cache, 50, key="first")
    granted(cache, 80, key="second")
    assert not cache.acquire("acme", "first", 51, 10.0)
    assert cache.acquire("acme", "second", 40, 10.0)
    assert not cache.acquire("acme", "first", 41, 10.0)
    assert cache.acquire("acme", "first", 40, 10.0)
    assert not cache.acquire("acme", "unknown", 1, 10.0)


def test_an_expired_grant_admits_nothing():
    cache = callers()
    granted(cache, 50, proof=b"g", expires_at=20.0)
    assert cache.acquire("acme", "k", 1, 20.0).proof == b"g"
    assert not cache.acquire("acme", "k", 1, 20.1)


def test_a_deferred_frame_has_the_age_of_its_admission_and_the_tokens_of_an_ended_request():
    deferred = DeferredReservations(max_entries=4)
    frame = AdmitRequest(reserve=Reserve(request_id="t1"))
    deferred.add("t1", DeferredReservation("acme", 30, KeyGrant(70), 10.0, frame))
    [entry] = deferred.entries({"t1", "other"})
    sent = entry.frame_at(12.5)
    assert sent.reserve.fallback_admission.age_nanos == 2_500_000_000
    assert not sent.reserve.fallback_admission.HasField("used_tokens")
    entry, unused = deferred.settle("t1", Settle(4, 6, "stop"))
    assert (unused, entry.frame_at(13.0).reserve.fallback_admission.used_tokens) == (20, 10)


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
        self.callers.grant_key(f"key of {tenant}", KeyGrant(tokens))
        self.granted[tenant] = max(tokens, self._open(tenant))

    @rule(tenant=st.sampled_from(TENANTS), tokens=st.integers(0, 50))
    def admit(self, tenant, tokens):
        if self.deferred.is_full or not (grant := self.callers.acquire(tenant, f"key of {tenant}", tokens, 10.0)):
            return
        self.number += 1
        ticket = f"t{self.number}"
        frame = AdmitRequest(reserve=Reserve(request_id=ticket))
        self.deferred.add(ticket, DeferredReservation(tenant, tokens, grant, 10.0, frame))
        self.running[ticket] = tenant, tokens

    @rule(number=st.integers(1, 30), share=st.floats(0, 1))
    def end(self, number, share):
        tenant, tokens = self.running.pop(f"t{number}", ("", 0))
        if not tenant or f"t{number}" not in self.deferred:
            return
        spent = Settle(0, int(tokens * share), "stop")
        entry, unused = self.deferred.settle(f"t{number}", spent)
        self.callers.release(tenant, entry.grant, unused)
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
        assert self.deferred.ticket_ids | set(self.recorded) == {f"t{number + 1}" for number in range(self.number)}
        assert not self.deferred.ticket_ids & set(self.recorded)


Outage.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestOutage = Outage.TestCase
