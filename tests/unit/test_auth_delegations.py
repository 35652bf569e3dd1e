"""Delegations: for whom auth issues them, what they are accepted for, and what stops them."""

from dataclasses import replace

import pytest

from penstock.auth.identity.authenticator import REJECTION_TTL_S, Authenticator, FailureLimits
from penstock.auth.identity.delegation import (
    DELEGATION_TTL_S,
    DelegationExpired,
    DelegationInvalid,
    DelegationIssuer,
    DelegationRefused,
)
from penstock.auth.identity.keys import Key, KeyRing
from penstock.chassis.errors import PenstockError
from penstock.mesh.credential_hash import CredentialHash
from penstock.mesh.limits.bounds import DELEGATION_BYTES
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.v1.inference_pb2 import PRIORITY_BATCH

NOW = 1_800_000_000.0
PEPPER = b"p" * 32
SECRET = "pk_anna_" + "s" * 26
ISSUER = "https://id.example"


class Tokens:
    """A verifier of tokens that has issuers alone."""

    def __init__(self, *issuers):
        self.issuers = issuers

    def recognizes(self, bearer):
        return False

    def has_issuer(self, issuer):
        return issuer in self.issuers


def authenticator(limits=FailureLimits(), *, tokens=None) -> Authenticator:  # noqa: B008  # frozen
    keys = KeyRing(PEPPER)
    keys.put(Key(key_id="anna", tenant_id="acme", digest=keys.digest(SECRET), created_at=NOW))
    return Authenticator(keys, DelegationIssuer(PEPPER), limits, tokens)


def delegated(found: Authenticator, key=None, now=NOW) -> Credential:
    return Credential(delegation=found.delegations.issue(key or found.keys.by_id("anna"), now))


def token_key(*models, subject="ben") -> Key:
    return Key(
        key_id=f"oidc/acme/{subject}",
        tenant_id="acme",
        digest=b"",
        created_at=NOW,
        priority=PRIORITY_BATCH,
        models=frozenset(models),
        issuer=ISSUER,
    )


def reason_of(found: Authenticator, credential: Credential, now=NOW, edge_id="edge-1") -> str:
    try:
        found.authenticate(credential, now, edge_id=edge_id)
    except PenstockError as error:
        return error.reason
    return ""


def test_a_delegation_is_accepted_in_place_of_its_key_until_it_expires():
    found = authenticator()
    credential = delegated(found)
    assert found.authenticate(credential, NOW, edge_id="edge-1") == found.keys.by_id("anna")
    assert reason_of(found, credential, NOW + DELEGATION_TTL_S - 1.0, "edge-2") == ""
    assert reason_of(found, credential, NOW + DELEGATION_TTL_S) == "DELEGATION_EXPIRED"


def test_no_changed_byte_of_a_delegation_is_accepted():
    issuer = DelegationIssuer(PEPPER)
    delegation = issuer.issue(authenticator().keys.by_id("anna"), NOW)
    changed = [delegation[:at] + bytes([each ^ 1]) + delegation[at + 1 :] for at, each in enumerate(delegation)]
    for each in (*changed, delegation[:-1], delegation + b"\0", b"", bytes(16), b"x" * 512):
        with pytest.raises(DelegationInvalid):
            issuer.verify(each, NOW)
    assert issuer.verify(delegation, NOW).key_id == "anna"


def test_a_delegation_survives_a_restart_of_auth_and_no_other_pepper():
    delegation = DelegationIssuer(PEPPER).issue(token_key(), NOW)
    assert DelegationIssuer(PEPPER).verify(delegation, NOW).key_id == "oidc/acme/ben"
    with pytest.raises(DelegationInvalid):
        DelegationIssuer(b"q" * 32).verify(delegation, NOW)
    with pytest.raises(DelegationExpired, match="oidc/acme/ben has expired; create the batch again"):
        DelegationIssuer(PEPPER).verify(delegation, NOW + DELEGATION_TTL_S)


def test_what_stops_a_key_stops_its_delegation_with_the_same_reason():
    found = authenticator()
    credential = delegated(found)
    assert reason_of(found, credential) == ""
    found.keys.revoke("anna", NOW)
    assert reason_of(found, credential) == "KEY_REVOKED"
    for change, reason in (
        ({"expires_at": NOW}, "KEY_EXPIRED"),
        ({"tenant_id": "blue"}, "KEY_UNKNOWN"),  # the key of another tenant has the same id
    ):
        found = authenticator()
        found.keys.put(replace(found.keys.by_id("anna"), **change))
        assert reason_of(found, credential) == reason
    found.keys.remove("anna")
    found.forget_rejections()
    assert reason_of(found, credential) == "KEY_UNKNOWN"


def test_a_key_of_loopback_can_be_delegated():
    found = authenticator()
    found.keys.put(replace(found.keys.by_id("anna"), loopback_only=True))
    assert reason_of(found, delegated(found)) == ""


def test_a_credential_is_either_a_bearer_or_a_delegation():
    found = authenticator()
    credential = delegated(found)
    credential.bearer = SECRET
    assert reason_of(found, credential) == "DELEGATION_INVALID"
    assert reason_of(found, Credential(bearer=SECRET)) == ""


def test_the_delegation_of_a_token_has_its_class_and_its_models_while_its_issuer_is_configured():
    found = authenticator(tokens=Tokens(ISSUER))
    credential = delegated(found, token_key("a", "b"))
    key = found.authenticate(credential, NOW)
    assert (key.key_id, key.tenant_id, key.priority, key.models) == (
        "oidc/acme/ben",
        "acme",
        PRIORITY_BATCH,
        {"a", "b"},
    )
    assert found.authenticate(delegated(found, token_key()), NOW).models == frozenset()
    assert found.authenticate(delegated(found, replace(token_key(), models=None)), NOW).models is None
    for tokens in (Tokens("https://other.example"), None):
        assert reason_of(authenticator(tokens=tokens), credential) == "TOKEN_INVALID"


def test_a_token_whose_models_do_not_fit_is_not_delegated():
    issuer = DelegationIssuer(PEPPER)
    subject = "s" * 160
    assert len(issuer.issue(token_key("m" * 100, subject=subject), NOW)) <= DELEGATION_BYTES
    with pytest.raises(DelegationRefused, match="names too many models for a batch"):
        issuer.issue(token_key(*(f"model-{number:040d}" for number in range(10)), subject=subject), NOW)


def test_a_false_delegation_counts_against_its_edge_once_until_its_rejection_expires():
    found = authenticator(FailureLimits(per_source=100, per_edge=3))
    false = [Credential(delegation=b"x" * 40 + bytes([number])) for number in range(5)]
    assert {reason_of(found, false[0]) for _ in range(1_000)} == {"DELEGATION_INVALID"}
    assert found.failures == 1
    assert reason_of(found, false[0], NOW + REJECTION_TTL_S) == "DELEGATION_INVALID"
    assert found.failures == 2
    later = NOW + REJECTION_TTL_S
    assert [reason_of(found, each, later) for each in false[1:]] == ["DELEGATION_INVALID"] + ["TOO_MANY_FAILURES"] * 3
    assert reason_of(found, false[4], later, "edge-2") == "DELEGATION_INVALID"


def test_false_delegations_of_an_edge_limit_no_caller_of_it_and_no_accepted_delegation():
    found = authenticator(FailureLimits(per_source=100, per_edge=3))
    accepted = delegated(found)
    assert reason_of(found, accepted) == ""
    for number in range(10):
        reason_of(found, Credential(delegation=b"x" * 40 + bytes([number])))
    assert reason_of(found, Credential(bearer=SECRET, source="192.0.2.1")) == ""
    assert reason_of(found, accepted) == ""
    assert reason_of(found, delegated(found, now=NOW + 1.0)) == "TOO_MANY_FAILURES"


def test_a_batch_whose_key_is_revoked_counts_no_failure():
    found = authenticator(FailureLimits(per_source=1, per_edge=1))
    credential = delegated(found)
    found.keys.revoke("anna", NOW)
    assert {reason_of(found, credential, NOW + 7.0 * number) for number in range(50)} == {"KEY_REVOKED"}
    assert found.failures == 0


def test_the_owner_of_a_delegation_is_named_usable_or_not():
    found = authenticator()
    credential = delegated(found)
    found.keys.revoke("anna", NOW)
    assert found.owner(credential).key_id == found.owner(Credential(bearer=SECRET)).key_id == "anna"
    found.keys.remove("anna")
    assert found.owner(credential) is found.owner(Credential(delegation=b"x" * 40)) is None


def test_digests_tell_bearers_delegations_and_loopback_apart():
    hashed = CredentialHash(PEPPER)
    credentials = [
        Credential(bearer=bearer, delegation=delegation, loopback=loopback)
        for bearer in ("", "a", "ab")
        for delegation in (b"", b"a", b"ba", b"b")
        for loopback in (False, True)
    ]
    assert len({hashed.digest(each) for each in credentials}) == len(credentials)
    assert hashed.digest(credentials[3]) != CredentialHash(b"q").digest(credentials[3])
