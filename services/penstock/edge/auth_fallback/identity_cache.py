"""Who auth let in of late, and how much more it said may be let in without it."""

from collections import OrderedDict
from hashlib import blake2b
from typing import NamedTuple

from penstock.mesh.v1.admission_pb2 import Credential, Identity
from penstock.v1.inference_pb2 import Priority


class CachedIdentity(NamedTuple):
    identity: Identity  # of its own class, as far as that has shown
    admitted_at: float  # when auth last let it in


class IdentityCache:
    """Keeps digests, never what a caller showed; the least recently met go first."""

    def __init__(self, *, max_entries: int, ttl: float, pepper: bytes) -> None:
        self._max_entries = max_entries
        self._ttl = ttl  # s
        self._pepper = pepper  # of this process alone, up to 64 bytes
        self._identities: OrderedDict[bytes, CachedIdentity] = OrderedDict()
        self._granted_tokens: OrderedDict[str, int] = OrderedDict()  # tokens, by tenant

    def __len__(self) -> int:
        return len(self._identities)

    def __repr__(self) -> str:
        return f"<Callers {len(self._identities)} of {len(self._granted_tokens)} tenants>"

    def record_admitted(
        self, credential: Credential, granted: Identity, requested_priority: "Priority.ValueType", now: float
    ) -> None:
        """Auth has let in a request that asked for a class and was granted that or a lower one."""
        digest = self._digest(credential)
        known = self._identities.pop(digest, None)
        identity = Identity()
        identity.CopyFrom(granted)
        if known and granted.priority == requested_priority:  # its own class may be higher, and was if it was so before
            identity.priority = min(granted.priority, known.identity.priority)
        self._identities[digest] = CachedIdentity(identity, now)
        if len(self._identities) > self._max_entries:
            self._identities.popitem(last=False)

    def invalidate(self, credential: Credential) -> None:
        """Auth does not let it in any more."""
        self._identities.pop(self._digest(credential), None)

    def grant(self, tenant_id: str, tokens: int) -> None:
        """Auth's latest word on what may be let in without it, in place of all before."""
        self._granted_tokens[tenant_id] = max(0, tokens)
        self._granted_tokens.move_to_end(tenant_id)
        if len(self._granted_tokens) > self._max_entries:
            self._granted_tokens.popitem(last=False)

    def revoke_grant(self, credential: Credential) -> None:
        """The caller's tenant is at its limits."""
        if caller := self._identities.get(self._digest(credential)):
            self.grant(caller.identity.tenant_id, 0)

    def find(self, credential: Credential, priority: "Priority.ValueType", now: float) -> Identity | None:
        """Who it is, with the lower of its own class and the one asked for; None for nobody that was met of late."""
        caller = self._identities.get(self._digest(credential))
        if caller is None or now - caller.admitted_at > self._ttl:
            return None
        identity = Identity()
        identity.CopyFrom(caller.identity)
        identity.priority = max(identity.priority, priority)
        return identity

    def acquire(self, tenant_id: str, tokens: int) -> bool:
        """Take out of what is granted; False, and nothing taken, when that is not enough."""
        left = self._granted_tokens.get(tenant_id, 0) - tokens
        if left < 0 or self._granted_tokens.get(tenant_id, 0) <= 0:
            return False
        self._granted_tokens[tenant_id] = left
        return True

    def release(self, tenant_id: str, tokens: int) -> None:
        if tenant_id in self._granted_tokens:
            self._granted_tokens[tenant_id] += tokens

    def _digest(self, credential: Credential) -> bytes:
        """A key that works on loopback alone is another one elsewhere."""
        shown = blake2b(credential.bearer.encode(), digest_size=16, key=self._pepper).digest()
        return shown + bytes([credential.loopback])
