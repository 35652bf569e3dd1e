"""Who auth let in of late, and how much more it said may be let in without it."""

from collections import OrderedDict
from hashlib import blake2b
from typing import NamedTuple

from penstock.mesh.v1.admission_pb2 import Credential, Identity
from penstock.v1.inference_pb2 import Priority


class Caller(NamedTuple):
    identity: Identity  # of its own class, as far as that has shown
    met_at: float  # when auth last let it in


class Callers:
    """Keeps digests, never what a caller showed; the least recently met go first."""

    def __init__(self, *, most: int, memory: float, pepper: bytes) -> None:
        self._most = most
        self._memory = memory  # s
        self._pepper = pepper  # of this process alone, up to 64 bytes
        self._callers: OrderedDict[bytes, Caller] = OrderedDict()
        self._granted: OrderedDict[str, int] = OrderedDict()  # tokens, by tenant

    def __len__(self) -> int:
        return len(self._callers)

    def __repr__(self) -> str:
        return f"<Callers {len(self._callers)} of {len(self._granted)} tenants>"

    def met(self, credential: Credential, granted: Identity, asked: "Priority.ValueType", now: float) -> None:
        """Auth has let in a request that asked for a class and was granted that or a lower one."""
        digest = self._digest(credential)
        known = self._callers.pop(digest, None)
        identity = Identity()
        identity.CopyFrom(granted)
        if known and granted.priority == asked:  # its own class may be higher, and was if it was so before
            identity.priority = min(granted.priority, known.identity.priority)
        self._callers[digest] = Caller(identity, now)
        if len(self._callers) > self._most:
            self._callers.popitem(last=False)

    def forget(self, credential: Credential) -> None:
        """Auth does not let it in any more."""
        self._callers.pop(self._digest(credential), None)

    def grant(self, tenant_id: str, tokens: int) -> None:
        """Auth's latest word on what may be let in without it, in place of all before."""
        self._granted[tenant_id] = max(0, tokens)
        self._granted.move_to_end(tenant_id)
        if len(self._granted) > self._most:
            self._granted.popitem(last=False)

    def exhaust(self, credential: Credential) -> None:
        """The caller's tenant is at its limits."""
        if caller := self._callers.get(self._digest(credential)):
            self.grant(caller.identity.tenant_id, 0)

    def find(self, credential: Credential, asked: "Priority.ValueType", now: float) -> Identity | None:
        """Who it is, with the lower of its own class and the one asked for; None for nobody that was met of late."""
        caller = self._callers.get(self._digest(credential))
        if caller is None or now - caller.met_at > self._memory:
            return None
        identity = Identity()
        identity.CopyFrom(caller.identity)
        identity.priority = max(identity.priority, asked)
        return identity

    def take(self, tenant_id: str, tokens: int) -> bool:
        """Take out of what is granted; False, and nothing taken, when that is not enough."""
        left = self._granted.get(tenant_id, 0) - tokens
        if left < 0 or self._granted.get(tenant_id, 0) <= 0:
            return False
        self._granted[tenant_id] = left
        return True

    def give_back(self, tenant_id: str, tokens: int) -> None:
        if tenant_id in self._granted:
            self._granted[tenant_id] += tokens

    def _digest(self, credential: Credential) -> bytes:
        """A key that works on loopback alone is another one elsewhere."""
        shown = blake2b(credential.bearer.encode(), digest_size=16, key=self._pepper).digest()
        return shown + bytes([credential.loopback])
