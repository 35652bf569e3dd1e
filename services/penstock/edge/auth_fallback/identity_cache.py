"""Identities that auth admitted recently, and the token grants of tenants and keys while auth is unreachable."""

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from penstock.mesh.credential_hash import CredentialHash
from penstock.mesh.v1.admission_pb2 import Credential, Identity
from penstock.v1.inference_pb2 import Priority


class CachedIdentity(NamedTuple):
    identity: Identity  # with the caller's own class, as far as it is known
    admitted_at: float  # when auth last admitted it, or last identified it
    is_rejected: bool = False  # auth has rejected a request of it since


@dataclass(slots=True, eq=False)
class KeyGrant:
    """The latest grant of one key. Its tokens are those of the tenant at the time; requests take them from both."""

    tokens_left: int
    proof: bytes = b""  # for auth; empty if auth is of a release without grants
    expires_at: float = math.inf  # s


class IdentityCache:
    """Keeps digests of credentials, never the credentials. The least recently admitted identities are evicted first."""

    def __init__(self, *, max_entries: int, ttl: float, pepper: bytes) -> None:
        self._max_entries = max_entries
        self._ttl = ttl  # s
        self._hash = CredentialHash(pepper)
        self._identities: OrderedDict[bytes, CachedIdentity] = OrderedDict()
        self._identified: OrderedDict[bytes, CachedIdentity] = OrderedDict()  # callers that auth has not admitted yet
        self._granted_tokens: OrderedDict[str, int] = OrderedDict()  # tokens, by tenant
        self._key_grants: OrderedDict[str, KeyGrant] = OrderedDict()  # by key id

    def __len__(self) -> int:
        return len(self._identities)

    def __repr__(self) -> str:
        return f"<IdentityCache {len(self._identities)} of {len(self._granted_tokens)} tenants>"

    def record_admitted(
        self, credential: Credential, granted: Identity, requested_priority: "Priority.ValueType", now: float
    ) -> None:
        """Record that auth admitted a request, with the class that was requested and the identity that was granted."""
        digest = self._hash.digest(credential)
        self._identified.pop(digest, None)
        cached = self._identities.pop(digest, None)
        identity = Identity()
        identity.CopyFrom(granted)
        if cached and granted.priority == requested_priority:  # the caller's own class may be higher than requested
            identity.priority = min(granted.priority, cached.identity.priority)
        self._identities[digest] = CachedIdentity(identity, now)
        if len(self._identities) > self._max_entries:
            self._identities.popitem(last=False)

    def record_identified(self, credential: Credential, identity: Identity, now: float) -> None:
        """Record that auth identified a caller. This makes it known; only an admission makes it valid for fallback."""
        digest = self._hash.digest(credential)
        self._identified.pop(digest, None)
        self._identified[digest] = CachedIdentity(identity, now)
        if len(self._identified) > self._max_entries:
            self._identified.popitem(last=False)

    def find_known(self, credential: Credential, now: float) -> Identity | None:
        """Return the identity of a caller that auth recently admitted or identified. The caller must not change it."""
        digest = self._hash.digest(credential)
        for cached in (self._identities.get(digest), self._identified.get(digest)):
            if cached and now - cached.admitted_at <= self._ttl:
                return cached.identity
        return None

    def invalidate(self, credential: Credential) -> None:
        """Remove a caller that auth rejects."""
        digest = self._hash.digest(credential)
        self._identities.pop(digest, None)
        self._identified.pop(digest, None)

    def forget_identities(self) -> None:
        """Remove all callers. The grants of tenants and keys stay."""
        self._identities.clear()
        self._identified.clear()

    def record_rejected(self, credential: Credential) -> None:
        """Record that auth rejected a request of a caller, until it admits one again."""
        digest = self._hash.digest(credential)
        if cached := self._identities.get(digest):
            self._identities[digest] = cached._replace(is_rejected=True)

    def grant(self, tenant_id: str, tokens: int) -> None:
        """Replace the tokens that the edge may admit for a tenant while auth is unreachable."""
        self._granted_tokens[tenant_id] = max(0, tokens)
        self._granted_tokens.move_to_end(tenant_id)
        if len(self._granted_tokens) > self._max_entries:
            self._granted_tokens.popitem(last=False)

    def grant_key(self, key_id: str, grant: KeyGrant) -> None:
        """Replace the grant of a key."""
        self._key_grants[key_id] = grant
        self._key_grants.move_to_end(key_id)
        if len(self._key_grants) > self._max_entries:
            self._key_grants.popitem(last=False)

    def revoke_grant(self, credential: Credential) -> None:
        """Set the grant of the caller's tenant to 0, because the tenant is at its limits."""
        if caller := self._identities.get(self._hash.digest(credential)):
            self.grant(caller.identity.tenant_id, 0)

    def find(
        self, credential: Credential, priority: "Priority.ValueType", now: float, *, accepts_rejected: bool = True
    ) -> Identity | None:
        """Return the identity with the lower of its own and the requested class. None if it is not cached.

        Without `accepts_rejected`, also None if auth rejected the caller's last request.
        """
        caller = self._identities.get(self._hash.digest(credential))
        if caller is None or now - caller.admitted_at > self._ttl or (caller.is_rejected and not accepts_rejected):
            return None
        identity = Identity()
        identity.CopyFrom(caller.identity)
        identity.priority = max(identity.priority, priority)
        return identity

    def acquire(self, tenant_id: str, key_id: str, tokens: int, now: float) -> KeyGrant | None:
        """Take tokens from the grants of tenant and key. Return the key's grant; None if one does not suffice."""
        grant, left = self._key_grants.get(key_id), self._granted_tokens.get(tenant_id, 0)
        if grant is None or now > grant.expires_at or min(left, grant.tokens_left) < max(1, tokens):
            return None
        self._granted_tokens[tenant_id] = left - tokens
        grant.tokens_left -= tokens
        return grant

    def release(self, tenant_id: str, grant: KeyGrant, tokens: int) -> None:
        """Give back tokens that a request did not use."""
        grant.tokens_left += tokens
        if tenant_id in self._granted_tokens:
            self._granted_tokens[tenant_id] += tokens
