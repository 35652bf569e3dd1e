"""Fallback grants: an edge may name only keys that auth granted it, within the tokens and the time of the grant."""

import random

import pytest

from penstock.auth.quota.grant import (
    MAX_ADMISSION_AGE_S,
    MAX_CLOCK_STEP_S,
    MAX_DELIVERY_S,
    MEMORY_S,
    GrantInvalid,
    GrantIssuer,
)
from penstock.auth.quota.grant_uses import MAX_USES, GrantUses
from penstock.edge.auth_fallback.identity_cache import IdentityCache, KeyGrant
from penstock.edge.auth_fallback.pending import DeferredReservation, DeferredReservations
from penstock.edge.lifecycle.effects import Settle
from penstock.mesh.v1.admission_pb2 import AdmitRequest, Reserve

NOW = 1_800_000_000.0
TTL_S = 600.0


def issuer(pepper=b"p" * 32) -> GrantIssuer:
    return GrantIssuer(pepper, TTL_S)


def verified(auth, grant, *, edge="edge-1", key="k", age=0.0, now=NOW):
    return auth.verify(grant, edge, key, age, now)


def test_a_grant_is_valid_for_its_edge_and_key_alone():
    auth = issuer()
    grant = auth.issue("edge-1", "k", 100, NOW)
    assert verified(auth, grant).tokens == 100
    for stranger in ({"edge": "edge-2"}, {"key": "k2"}, {"edge": "edge-1k", "key": ""}, {"edge": "edge-", "key": "1k"}):
        with pytest.raises(GrantInvalid, match="not one of auth"):
            verified(auth, grant, **stranger)


def test_no_changed_byte_of_a_grant_is_accepted():
    auth = issuer()
    grant = auth.issue("edge-1", "k", 100, NOW)
    changed = [grant[:at] + bytes([grant[at] ^ bit]) + grant[at + 1 :] for at in range(len(grant)) for bit in (1, 128)]
    for each in (*changed, grant[:-1], grant + b"\0", b"", b"x" * 64, bytes(len(grant))):
        with pytest.raises(GrantInvalid):
            verified(auth, each)


def test_a_grant_survives_a_restart_of_auth_and_no_other_pepper():
    grant = issuer().issue("edge-1", "k", 100, NOW)
    assert verified(issuer(), grant).tokens == 100
    with pytest.raises(GrantInvalid):
        verified(issuer(b"q" * 32), grant)


def test_each_grant_is_counted_apart():
    auth = issuer()
    grants = [verified(auth, auth.issue("edge-1", "k", 100, NOW)) for _ in range(3)]
    assert len({each.grant_id for each in (*grants, verified(auth, issuer().issue("edge-1", "k", 100, NOW)))}) == 4


def test_an_admission_after_the_expiry_is_rejected_whenever_it_is_recorded():
    auth = issuer()
    grant = auth.issue("edge-1", "k", 100, NOW)
    for held in (0.0, 100.0, 10_000.0):
        last = NOW + TTL_S + MAX_DELIVERY_S
        assert verified(auth, grant, age=held, now=last + held)
        with pytest.raises(GrantInvalid, match="expired"):
            verified(auth, grant, age=held, now=last + held * 1.06 + 1)


def test_a_clock_that_stepped_while_auth_restarted_rejects_no_honest_admission():
    grant = issuer().issue("edge-1", "k", 100, NOW)
    for step in (-600.0, 600.0, MAX_CLOCK_STEP_S):
        assert verified(issuer(), grant, age=5.0, now=NOW + TTL_S + 5.0 + step)


def test_an_edge_cannot_extend_a_grant_by_a_false_age():
    auth = issuer()
    grant = auth.issue("edge-1", "k", 100, NOW)
    with pytest.raises(GrantInvalid, match="expired"):
        verified(auth, grant, age=MAX_ADMISSION_AGE_S + 1, now=NOW + MAX_ADMISSION_AGE_S + 1)
    for age in (0.0, 1e4, MAX_ADMISSION_AGE_S):
        with pytest.raises(GrantInvalid, match="expired"):
            verified(auth, grant, age=age, now=NOW + TTL_S + MEMORY_S)


def uses(lost=()):
    return GrantUses(set(lost).__contains__)


def grant_of(tokens, auth=None):
    auth = auth or issuer()
    return verified(auth, auth.issue("edge-1", "k", tokens, NOW))


def test_the_requests_of_a_grant_stay_within_its_tokens():
    counted, grant = uses(), grant_of(100)
    counted.record(grant, "a", "r-a", 60)
    with pytest.raises(GrantInvalid, match="40 left"):
        counted.record(grant, "b", "r-b", 41)
    counted.record(grant, "b", "r-b", 40)
    with pytest.raises(GrantInvalid, match="0 left"):
        counted.record(grant, "c", "r-c", 1)
    counted.record(grant_of(1), "c", "r-c", 1)


def test_tokens_that_a_request_did_not_use_are_free_for_others():
    counted, grant = uses(), grant_of(100)
    counted.record(grant, "a", "r-a", 100)
    counted.reduce(grant, "r-a", 70)
    counted.reduce(grant, "r-a", 90)  # more than before
    counted.reduce(grant_of(100), "r-a", 0)  # by another grant
    counted.record(grant, "b", "r-b", 30)
    assert counted.settle("r-b", 10) == 10
    counted.record(grant, "c", "r-c", 20)


def test_a_settlement_counts_at_most_what_the_grant_has_left():
    """An edge that reports fewer used tokens than it then settles gains nothing."""
    counted, grant = uses(), grant_of(100)
    for name in "abcd":
        counted.record(grant, name, f"r-{name}", 80) if name == "a" else counted.record(grant, name, f"r-{name}", 20)
        counted.reduce(grant, f"r-{name}", 0)
    assert [counted.settle(f"r-{name}", 80) for name in "abcd"] == [80, 20, 0, 0]
    assert counted.settle("unknown", 80) == 80


def test_a_request_counts_once_unless_its_reservation_was_lost():
    lost = set()
    counted, grant = GrantUses(lost.__contains__), grant_of(100)
    counted.record(grant, "a", "r-1", 80)
    with pytest.raises(GrantInvalid, match="before"):
        counted.record(grant, "a", "r-2", 20)
    lost.add("r-1")
    counted.record(grant, "a", "r-2", 80)
    assert counted.find("r-1") is None
    with pytest.raises(GrantInvalid):
        counted.record(grant, "b", "r-3", 21)


def test_a_reservation_that_was_not_persisted_does_not_count():
    counted, grant = uses(), grant_of(100)
    counted.record(grant, "a", "r-a", 80)
    counted.cancel("r-a"), counted.cancel("unknown")
    counted.record(grant, "a", "r-b", 100)


def test_uses_are_restored_and_forgotten_with_their_grants():
    counted, grant = uses(), grant_of(100)
    counted.record(grant, "a", "r-a", 80)
    restored = uses()
    restored.restore([counted.find("r-a")])
    with pytest.raises(GrantInvalid, match="20 left"):
        restored.record(grant, "b", "r-b", 21)
    restored.forget(NOW + TTL_S)
    assert len(restored) == 1
    restored.forget(NOW + TTL_S + MEMORY_S)
    assert len(restored) == 0
    assert (restored._tokens, restored._reservations) == ({}, {})


def test_restored_uses_replace_those_of_a_former_time_as_the_owner():
    """Another replica recorded the request again, because its reservation was lost."""
    counted, grant = uses(), grant_of(100)
    counted.record(grant, "request", "former", 60)
    stored = GrantUses(lambda _: False)
    stored.record(grant, "request", "present", 60)
    counted.restore([stored.find("present")])
    assert counted.find("former") is None
    counted.record(grant, "other", "other", 40)


def test_the_number_of_uses_is_bounded(monkeypatch):
    monkeypatch.setattr("penstock.auth.quota.grant_uses.MAX_USES", 10)
    assert MAX_USES > 10
    counted, grant = uses(), grant_of(100)
    for number in range(15):
        counted.record(grant, f"{number}", f"r-{number}", 1)
    counted.forget(NOW)
    assert len(counted) == 10


class HonestEdge:
    """An edge that stays within its grants, and an auth that receives its frames late: no frame is rejected."""

    TENANT, KEYS = "acme", ("first", "second")

    def __init__(self):
        self.cache = IdentityCache(max_entries=10, ttl=600.0, pepper=b"p" * 32)
        self.deferred = DeferredReservations(max_entries=100)
        self.auth = issuer()
        self.uses = uses()
        self.recorded = {}  # request -> reservation
        self.stream = []  # frames on their way, and settlements
        self.unsettled = {}  # reservation -> tokens that the edge will report
        self.number = 0

    def grant(self, key, tokens):
        """An admission by auth, with the grants that follow from it. It follows all frames that auth has handled."""
        self.deliver(100)
        for ticket in sorted(self.recorded.keys() & self.deferred.ticket_ids):
            self.admit_recorded(ticket)
        self.cache.grant(self.TENANT, tokens - self.deferred.tokens_of(self.TENANT))
        self.cache.grant_key(key, KeyGrant(tokens, self.auth.issue("edge-1", key, tokens, NOW)))

    def admit(self, key, tokens):
        grant = self.cache.acquire(self.TENANT, key, tokens, NOW)
        if grant is None:
            return
        self.number += 1
        frame = AdmitRequest(reserve=Reserve(request_id=f"t{self.number}", max_output_tokens=tokens))
        frame.reserve.fallback_admission.key_id = key
        frame.reserve.fallback_admission.grant = grant.proof
        entry = DeferredReservation(self.TENANT, tokens, grant, NOW, frame)
        self.deferred.add(f"t{self.number}", entry)
        self.send(entry)

    def end(self, number, share):
        running = [ticket for ticket, entry in self.deferred._entries.items() if not entry.settlement]
        if not running:
            return
        ticket = running[number % len(running)]
        used = int(self.deferred._entries[ticket].tokens * share)
        entry, unused = self.deferred.settle(ticket, Settle(0, used, "stop"))
        self.cache.release(self.TENANT, entry.grant, unused)
        self.send(entry)

    def send(self, entry):
        frame = AdmitRequest()
        frame.CopyFrom(entry.frame_at(NOW))
        self.stream.append(frame.reserve)

    def resend(self):
        """A new stream: what was on its way is lost."""
        self.stream = [each for each in self.stream if isinstance(each, tuple)]
        for entry in self.deferred._entries.values():
            self.send(entry)

    def deliver(self, count):
        for frame in self.stream[:count]:
            if isinstance(frame, tuple):
                assert self.uses.settle(*frame) == frame[1]
            else:
                self.record(frame)
        del self.stream[:count]

    def record(self, frame):
        admission = frame.fallback_admission
        grant = verified(self.auth, admission.grant, key=admission.key_id, age=admission.age_nanos / 1e9)
        tokens = admission.used_tokens if admission.HasField("used_tokens") else frame.max_output_tokens
        if frame.request_id in self.recorded:
            self.uses.reduce(grant, f"r-{frame.request_id}", tokens)
        else:
            self.uses.record(grant, frame.request_id, f"r-{frame.request_id}", tokens)
            self.recorded[frame.request_id] = frame

    def answer(self, number):
        """Auth's answer reaches the edge, which settles a request that has ended."""
        if self.recorded:
            self.admit_recorded(list(self.recorded)[number % len(self.recorded)])

    def admit_recorded(self, ticket):
        entry = self.deferred.pop(ticket)
        if entry and entry.settlement:
            self.stream.append((f"r-{ticket}", entry.settlement.output_tokens))


STEPS = {"grant": 1, "admit": 2, "end": 2, "resend": 1, "deliver": 1, "answer": 1}  # by weight


def test_no_admission_of_an_honest_edge_is_rejected_whenever_its_frames_arrive():
    admitted = recorded = 0
    for seed in range(200):
        rng, edge = random.Random(seed), HonestEdge()
        for _ in range(60):
            key, number = rng.choice(edge.KEYS), rng.randint(1, 20)
            match rng.choices(list(STEPS), STEPS.values())[0]:
                case "grant":
                    edge.grant(key, rng.randint(1, 100))
                case "admit":
                    edge.admit(key, rng.randint(1, 50))
                case "end":
                    edge.end(number, rng.random())
                case "resend":
                    edge.resend()
                case "deliver":
                    edge.deliver(rng.randint(1, 5))
                case "answer":
                    edge.answer(number)
        admitted, recorded = admitted + edge.number, recorded + len(edge.recorded)
    assert admitted > recorded > 1_000
