"""Authentication of callers: limits of failures, cached rejections, and callers that are served beside a guesser."""

import pytest

from penstock.auth.identity.authenticator import ACCEPTED_TTL_S, REJECTION_TTL_S, Authenticator, FailureLimits
from penstock.auth.identity.credential_cache import CredentialCache
from penstock.auth.identity.delegation import DelegationIssuer
from penstock.auth.identity.failure_limiter import FailureLimit, FailureLimiter, TooManyFailures
from penstock.auth.identity.keys import Key, KeyRing
from penstock.chassis.errors import PenstockError
from penstock.mesh.credential_hash import CredentialHash
from penstock.mesh.v1.admission_pb2 import Credential

PEPPER = b"p" * 32
NOW = 1_800_000_000.0
SECRET = "pk_good_" + "s" * 26
SOURCE = "203.0.113.9"
LIMITS = FailureLimits(per_source=6, per_edge=20)


def authenticator(limits=LIMITS) -> Authenticator:
    keys = KeyRing(PEPPER)
    keys.put(Key(key_id="good", tenant_id="acme", digest=keys.digest(SECRET), created_at=NOW))
    return Authenticator(keys, DelegationIssuer(PEPPER), limits)


def guess(number: int, source=SOURCE) -> Credential:
    return Credential(bearer=f"pk_good_{number:026d}", source=source)


def known(source=SOURCE) -> Credential:
    return Credential(bearer=SECRET, source=source)


def reason_of(found: Authenticator, credential: Credential, now=NOW, **more) -> str:
    try:
        found.authenticate(credential, now, **more)
    except PenstockError as error:
        return error.reason
    return ""


def test_a_source_has_a_burst_of_failures_and_then_its_rate():
    found = authenticator()
    assert [reason_of(found, guess(number)) for number in range(8)] == ["KEY_UNKNOWN"] * 6 + ["TOO_MANY_FAILURES"] * 2
    with pytest.raises(TooManyFailures, match="retry in 10 s") as limited:
        found.authenticate(guess(9), NOW)
    assert limited.value.retry_after == 10.0
    assert reason_of(found, guess(10), NOW + 10.0) == "KEY_UNKNOWN"
    assert reason_of(found, guess(11), NOW + 10.0) == "TOO_MANY_FAILURES"
    assert (found.failures, found.limited) == (7, 4)


def test_beyond_the_limit_a_right_guess_is_not_even_looked_at():
    found = authenticator()
    for number in range(6):
        reason_of(found, guess(number))
    assert reason_of(found, known()) == "TOO_MANY_FAILURES"
    assert reason_of(found, known("203.0.113.10")) == ""


def test_a_caller_that_was_accepted_is_served_beside_a_guesser_of_its_source():
    found = authenticator()
    assert reason_of(found, known()) == ""
    for number in range(20):
        reason_of(found, guess(number))
    assert reason_of(found, known(), NOW + ACCEPTED_TTL_S - 1.0) == ""
    assert reason_of(found, guess(1)) == "TOO_MANY_FAILURES"


def test_a_caller_that_was_accepted_and_is_revoked_is_rejected():
    found = authenticator()
    assert reason_of(found, known()) == ""
    found.keys.revoke("good", NOW)
    assert reason_of(found, known()) == "KEY_REVOKED"


def test_sources_that_an_edge_does_not_name_share_the_limit_of_the_edge():
    found = authenticator()
    reasons = [reason_of(found, guess(number, source=""), edge_id="edge-1") for number in range(22)]
    assert reasons == ["KEY_UNKNOWN"] * 20 + ["TOO_MANY_FAILURES"] * 2
    assert reason_of(found, guess(30, source=""), edge_id="edge-2") == "KEY_UNKNOWN"


def test_a_source_over_its_limit_takes_nothing_from_its_edge():
    found = authenticator()
    for number in range(100):
        reason_of(found, guess(number), edge_id="edge-1")
    assert reason_of(found, guess(100, "198.51.100.1"), edge_id="edge-1") == "KEY_UNKNOWN"


def test_a_source_cannot_be_named_like_an_edge():
    found = authenticator()
    for number in range(30):
        reason_of(found, guess(number, "edge edge-1"))
    assert reason_of(found, guess(40, ""), edge_id="edge-1") == "KEY_UNKNOWN"


def test_a_call_without_a_credential_is_no_guess():
    found = authenticator()
    assert {reason_of(found, Credential(source=SOURCE)) for _ in range(100)} == {"KEY_MISSING"}
    assert found.failures == 0


def test_a_failing_credential_is_checked_once_until_its_rejection_expires():
    found = authenticator(FailureLimits(1_000, 1_000))
    checked = []
    found.keys.owner = checked.append
    for now in (NOW, NOW + 1.0, NOW + REJECTION_TTL_S - 0.1):
        assert reason_of(found, guess(1), now) == "KEY_UNKNOWN"
    assert len(checked) == 1
    assert reason_of(found, guess(1), NOW + REJECTION_TTL_S) == "KEY_UNKNOWN"
    assert len(checked) == 2


def test_a_rejection_from_afar_does_not_hold_on_loopback():
    found = authenticator()
    secret = "pk_dev_" + "d" * 26
    found.keys.put(
        Key(key_id="dev", tenant_id="default", digest=found.keys.digest(secret), created_at=NOW, loopback_only=True)
    )
    assert reason_of(found, Credential(bearer=secret, source=SOURCE)) == "LOOPBACK_ONLY"
    assert reason_of(found, Credential(bearer=secret, loopback=True)) == ""


def test_limited_names_and_cached_credentials_are_bounded():
    limiter = FailureLimiter(max_names=3)
    for name in "abcd":
        limiter.record([FailureLimit(name, 1)], NOW)
    assert len(limiter) == 3
    assert [limiter.retry_after([FailureLimit(name, 1)], NOW) for name in "abcd"] == [0.0, 60.0, 60.0, 60.0]
    cache, hashed = CredentialCache(max_entries=3), CredentialHash(b"p")
    for number in range(5):
        cache.put(hashed.digest(guess(number)), number, NOW + 1.0)
    assert len(cache) == 3
    assert [cache.find(hashed.digest(guess(number)), NOW) for number in range(5)] == [None, None, 2, 3, 4]
    assert cache.find(hashed.digest(guess(4)), NOW + 1.0) is None


def test_no_cache_has_a_credential():
    found = authenticator()
    reason_of(found, known()), reason_of(found, guess(1))
    assert b"pk_" not in b"".join([*found._accepted._results, *found._rejected._results])
