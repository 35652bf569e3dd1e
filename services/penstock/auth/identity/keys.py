"""API keys: their format, their digests, and the key ring that authenticates callers."""

import base64
import hmac
import math
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b

from penstock.auth.identity.policy import NO_POLICY, Policy
from penstock.chassis.errors import NotFound, PermissionDenied, Unauthenticated
from penstock.v1.inference_pb2 import PRIORITY_UNSPECIFIED, Priority

SECRET_BYTES = 20  # 160 bits
KEY_ID_BYTES = 5
# 22 characters of base62, or 26 of base32, have 128 bits, which cannot be guessed from a stored digest.
KEY_FORMAT = re.compile(r"pk_([a-z0-9]{1,32})_([A-Za-z0-9]{22,128})")
UNKNOWN_KEY_DIGEST = bytes(32)  # compared for an unknown key, so that the check takes as long as for a known one


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key without its secret, or the caller of a verified token."""

    key_id: str
    tenant_id: str
    digest: bytes  # HMAC-SHA-256 of the whole key under the pepper
    created_at: float  # s
    display_name: str = ""
    expires_at: float | None = None  # s; None: never
    revoked_at: float | None = None  # s; None: not revoked
    loopback_only: bool = False
    priority: "Priority.ValueType" = PRIORITY_UNSPECIFIED  # highest class; unspecified: that of the tenant
    models: frozenset[str] | None = None  # models that a token allows; None: all
    issuer: str = ""  # of the token; empty: an API key
    policy: Policy = NO_POLICY  # of the operator

    @property
    def ended_at(self) -> float:
        """Time in s from which the key is not accepted; infinite if none is known."""
        return min(
            math.inf if self.revoked_at is None else self.revoked_at,
            math.inf if self.expires_at is None else self.expires_at,
        )


def mint() -> tuple[str, str]:
    """Create a key. Return its id and the whole key."""
    key_id, secret = _random_base32(KEY_ID_BYTES), _random_base32(SECRET_BYTES)
    return key_id, f"pk_{key_id}_{secret}"


def key_id_of(bearer: str) -> str:
    """Return the public part of a key; empty if `bearer` does not have the format of a key."""
    match = KEY_FORMAT.fullmatch(bearer)
    return match[1] if match else ""


class KeyRing:
    """All keys. A presented key is always hashed first, and only digests are compared."""

    def __init__(self, pepper: bytes) -> None:
        self._pepper = pepper
        self._keys: dict[str, Key] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key_id: str) -> bool:
        return key_id in self._keys

    def digest(self, bearer: str) -> bytes:
        return hmac.digest(self._pepper, bearer.encode(), "sha256")

    def secrets_digest(self, mesh_secret: bytes) -> bytes:
        """Return a digest of the secrets that all regions share, by which two of them find out whether they do."""
        secrets_of_regions = len(self._pepper).to_bytes(4) + self._pepper + mesh_secret
        return blake2b(secrets_of_regions, digest_size=16, person=b"penstock regions").digest()

    def put(self, key: Key) -> None:
        self._keys[key.key_id] = key

    def replace(self, keys: Iterable[Key]) -> tuple[list[Key], list[Key]]:
        """Put all keys of the store, and remove the others but for those on loopback. A revocation stays.

        Return the keys with another policy than before, and the removed ones.
        """
        former = self._keys
        found = {each.key_id: each for each in keys}
        for each in self._keys.values():
            stored = found.get(each.key_id)
            if each.loopback_only:
                found[each.key_id] = each
            elif stored and each.revoked_at is not None:
                found[each.key_id] = replace(stored, revoked_at=each.revoked_at)
        self._keys = found
        changed = [
            each
            for each in found.values()
            if each.policy != (former[each.key_id].policy if each.key_id in former else NO_POLICY)
        ]
        return changed, [each for each in former.values() if each.key_id not in found]

    def remove(self, key_id: str) -> None:
        del self._keys[key_id]

    def of_tenant(self, tenant_id: str = "") -> list[Key]:
        """Return the keys of a tenant by creation time; of all tenants if `tenant_id` is empty."""
        found = [each for each in self._keys.values() if tenant_id in ("", each.tenant_id)]
        return sorted(found, key=lambda each: (each.created_at, each.key_id))

    def ended_before(self, tenant_id: str, moment: float) -> list[Key]:
        """Return the keys of a tenant that were revoked or have expired before `moment`."""
        return [each for each in self.of_tenant(tenant_id) if each.ended_at < moment]

    def revoke(self, key_id: str, now: float) -> Key:
        """Revoke a key. The time of the first revocation holds. Raises NotFound / KEY_UNKNOWN."""
        key = self._keys.get(key_id)
        if key is None:
            raise NotFound(f"there is no key {key_id!r}; see `penstock keys list`", reason="KEY_UNKNOWN")
        if key.revoked_at is None:
            key = self._keys[key_id] = replace(key, revoked_at=now)
        return key

    def by_id(self, key_id: str) -> Key:
        """Return a key by its id, usable or not. Raises Unauthenticated / KEY_UNKNOWN."""
        key = self._keys.get(key_id)
        if key is None:
            raise Unauthenticated(f"there is no key {key_id!r}", reason="KEY_UNKNOWN")
        return key

    def owner(self, bearer: str) -> Key | None:
        """Return the key that `bearer` presents, usable or not; None if it is unknown."""
        key = self._keys.get(key_id_of(bearer))
        is_known = hmac.compare_digest(self.digest(bearer), key.digest if key else UNKNOWN_KEY_DIGEST)
        return key if is_known else None

    def identify(self, bearer: str, *, loopback: bool, now: float) -> Key:
        """Return the key that `bearer` presents. Raises Unauthenticated or PermissionDenied.

        Only a caller that presents the secret learns that the key is revoked, expired or bound to loopback.
        """
        if not bearer:
            raise Unauthenticated("send an API key: `authorization: Bearer pk_...`", reason="KEY_MISSING")
        key = self.owner(bearer)
        if key is None:
            raise Unauthenticated("this API key is unknown", reason="KEY_UNKNOWN")
        _check_valid(key, now)
        if key.loopback_only and not loopback:
            text = f"key {key.key_id} works only for callers on this host; create another with `penstock keys create`"
            raise PermissionDenied(text, reason="LOOPBACK_ONLY")
        return key

    def delegator(self, key_id: str, tenant_id: str, now: float) -> Key:
        """Return the key for which a delegation was issued. Raises Unauthenticated.

        A key that works on loopback only is accepted: its caller was on loopback when the delegation was issued.
        """
        key = self._keys.get(key_id)
        if key is None or key.tenant_id != tenant_id:
            raise Unauthenticated(f"key {key_id} was deleted; request a new one", reason="KEY_UNKNOWN")
        _check_valid(key, now)
        return key


def _check_valid(key: Key, now: float) -> None:
    """Raise Unauthenticated if the key was revoked or has expired."""
    if key.revoked_at is not None:
        raise Unauthenticated(f"key {key.key_id} was revoked; request a new one", reason="KEY_REVOKED")
    if key.expires_at is not None and key.expires_at <= now:
        raise Unauthenticated(f"key {key.key_id} has expired; request a new one", reason="KEY_EXPIRED")


def _random_base32(size: int) -> str:
    return base64.b32encode(secrets.token_bytes(size)).decode().lower()


SALT_BYTES = 16


def cache_salt(mesh_secret: bytes, tenant_id: str) -> bytes:
    """Return the cache salt of a tenant, which is the same on every auth process with the same mesh secret."""
    return hmac.digest(mesh_secret, tenant_id.encode(), "sha256")[:SALT_BYTES]
