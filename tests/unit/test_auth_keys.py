"""Keys: format, stored digests, authentication and its errors."""

import hmac
from dataclasses import replace

import pytest

from penstock.auth.identity import keys
from penstock.auth.identity.keys import Key, KeyRing, cache_salt, key_id_of, mint
from penstock.auth.identity.policy import Limits, Policy
from penstock.auth.store.secret_file import load_or_create_secret
from penstock.chassis.errors import NotFound, PermissionDenied, Unauthenticated

NOW_UNIX_S = 1_800_000_000.0


def ring_with(**fields):
    """A key ring with one key, and the whole key."""
    ring = KeyRing(b"pepper")
    key_id, bearer = mint()
    ring.put(Key(key_id=key_id, tenant_id="acme", digest=ring.digest(bearer), created_at=NOW_UNIX_S, **fields))
    return ring, bearer


def test_a_key_names_its_public_part_and_has_at_least_128_random_bits():
    key_id, bearer = mint()
    assert key_id_of(bearer) == key_id
    secret = bearer.removeprefix(f"pk_{key_id}_")
    assert len(secret) * 5 >= 128  # base32
    assert len({mint()[1] for _ in range(100)}) == 100


SECRET = "a" * 40


@pytest.mark.parametrize(
    "bearer",
    [
        "",
        "pk_",
        "pk_a_short",
        f"sk_dev_{SECRET}",
        f"pk_dev_{SECRET}\n",
        f"pk_DEV_{SECRET}",
        f"pk__{SECRET}",
        f"pk_a_b_{SECRET}",
    ],
)
def test_malformed_keys_have_no_public_part(bearer):
    assert key_id_of(bearer) == ""


def test_the_secret_of_a_key_is_not_stored():
    ring, bearer = ring_with()
    [key] = ring.of_tenant()
    assert key.digest == hmac.digest(b"pepper", bearer.encode(), "sha256")
    assert bearer.split("_")[2] not in repr(key)


def test_a_key_identifies_its_tenant():
    ring, bearer = ring_with()
    assert ring.identify(bearer, loopback=False, now=NOW_UNIX_S).tenant_id == "acme"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"revoked_at": NOW_UNIX_S}, "KEY_REVOKED"),
        ({"expires_at": NOW_UNIX_S}, "KEY_EXPIRED"),
    ],
)
def test_an_ended_key_is_rejected_with_the_reason(fields, reason):
    ring, bearer = ring_with(**fields)
    with pytest.raises(Unauthenticated) as failure:
        ring.identify(bearer, loopback=True, now=NOW_UNIX_S)
    assert failure.value.reason == reason


@pytest.mark.parametrize("state", [{}, {"revoked_at": NOW_UNIX_S}, {"expires_at": NOW_UNIX_S}, {"loopback_only": True}])
def test_a_caller_without_the_secret_learns_nothing_about_the_key(state):
    ring, bearer = ring_with(**state)
    guess = bearer[:-1] + ("a" if bearer[-1] != "a" else "b")
    with pytest.raises(Unauthenticated) as failure:
        ring.identify(guess, loopback=True, now=NOW_UNIX_S)
    assert failure.value.reason == "KEY_UNKNOWN"


def test_a_missing_key_and_an_unknown_key_have_different_reasons():
    ring, _ = ring_with()
    with pytest.raises(Unauthenticated) as failure:
        ring.identify("", loopback=True, now=NOW_UNIX_S)
    assert failure.value.reason == "KEY_MISSING"


@pytest.mark.parametrize("bearer", ["nonsense", "pk_aaaaaaaa_" + "a" * 32, "' OR 1=1 --", "ключ"])
def test_an_unknown_key_costs_one_hash_and_one_comparison_like_a_known_one(bearer, monkeypatch):
    ring, _ = ring_with()
    compared = []
    monkeypatch.setattr(keys.hmac, "compare_digest", lambda a, b: compared.append((len(a), len(b))) or False)
    with pytest.raises(Unauthenticated):
        ring.identify(bearer, loopback=True, now=NOW_UNIX_S)
    assert compared == [(32, 32)]


def test_a_loopback_key_works_only_on_loopback():
    ring, bearer = ring_with(loopback_only=True)
    assert ring.identify(bearer, loopback=True, now=NOW_UNIX_S)
    with pytest.raises(PermissionDenied) as failure:
        ring.identify(bearer, loopback=False, now=NOW_UNIX_S)
    assert failure.value.reason == "LOOPBACK_ONLY"


def test_the_first_revocation_counts():
    ring, bearer = ring_with()
    key_id = key_id_of(bearer)
    assert ring.revoke(key_id, NOW_UNIX_S).revoked_at == NOW_UNIX_S
    assert ring.revoke(key_id, NOW_UNIX_S + 5).revoked_at == NOW_UNIX_S
    with pytest.raises(NotFound) as failure:
        ring.revoke("unknown", NOW_UNIX_S)
    assert failure.value.reason == "KEY_UNKNOWN"


def test_a_revoked_key_stays_revoked_and_has_the_limits_of_the_store():
    ring, bearer = ring_with()
    stored = replace(ring.by_id(key_id_of(bearer)), policy=Policy(limits=Limits(concurrent_requests=1)))
    ring.revoke(stored.key_id, NOW_UNIX_S)
    changed, removed = ring.replace([stored])
    assert changed == [replace(stored, revoked_at=NOW_UNIX_S)] == [ring.by_id(stored.key_id)]
    assert removed == []


def test_keys_are_listed_by_age_and_by_tenant():
    ring, _ = ring_with()
    [old] = ring.of_tenant()
    ring.put(replace(old, key_id="newer", created_at=NOW_UNIX_S + 1))
    ring.put(replace(old, key_id="others", tenant_id="blue", created_at=NOW_UNIX_S - 1))
    assert [each.key_id for each in ring.of_tenant()] == ["others", old.key_id, "newer"]
    assert [each.key_id for each in ring.of_tenant("acme")] == [old.key_id, "newer"]


def test_salts_differ_by_tenant_and_by_mesh_and_stay_the_same():
    assert len(cache_salt(b"mesh", "acme")) == 16
    assert cache_salt(b"mesh", "acme") == cache_salt(b"mesh", "acme")
    assert len({cache_salt(b"mesh", "acme"), cache_salt(b"mesh", "blue"), cache_salt(b"other", "acme")}) == 3


def test_a_secret_file_is_created_once_and_readable_by_its_owner_only(tmp_path):
    store = str(tmp_path / "auth.sqlite")
    made = load_or_create_secret(store, "pepper")
    assert len(made) == 32
    assert load_or_create_secret(store, "pepper") == made
    assert load_or_create_secret(store, "mesh-secret") != made
    assert (tmp_path / "auth.sqlite.pepper").stat().st_mode & 0o777 == 0o600


def test_a_readable_or_truncated_secret_file_prevents_the_start(tmp_path):
    store = str(tmp_path / "auth.sqlite")
    load_or_create_secret(store, "pepper")
    path = tmp_path / "auth.sqlite.pepper"
    path.write_text("abcd")
    with pytest.raises(ValueError, match="backup"):
        load_or_create_secret(store, "pepper")
    path.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        load_or_create_secret(store, "pepper")


def test_secrets_of_a_store_in_memory_are_new_each_time():
    assert load_or_create_secret(":memory:", "pepper") != load_or_create_secret(":memory:", "pepper")
