"""Delegations: proofs that requests may run for a key whose caller is not there. No I/O; `now` is an argument.

Auth issues one to a caller that creates a batch. It is valid for the same key or subject alone, at every edge and every
replica of auth, also after a restart. It says who the caller was, not what the key may do: a key is looked up again for
each request. A token cannot be looked up, so that its delegation has the class and the models of the token.
"""

import hmac
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from penstock.auth.identity.keys import Key
from penstock.chassis.errors import PermissionDenied, Unauthenticated
from penstock.mesh.limits.bounds import DELEGATION_BYTES
from penstock.mesh.v1.delegation_pb2 import Delegation

DELEGATION_TTL_S = 8 * 86_400.0  # s; a batch runs for at most 7 days
MAC_BYTES = 16
_LABEL = b"penstock delegation 1"


class DelegationInvalid(Unauthenticated):
    """A delegation that auth has not issued, or has issued under another pepper."""

    default_reason = "DELEGATION_INVALID"


class DelegationExpired(Unauthenticated):
    """A delegation of auth whose time has passed."""

    default_reason = "DELEGATION_EXPIRED"


class DelegationRefused(PermissionDenied):
    """A caller for which auth issues no delegation."""

    default_reason = "DELEGATION_REFUSED"


@dataclass(slots=True)
class DelegationIssuer:
    """Issues and verifies delegations: a MAC of 16 bytes, then the message `Delegation`."""

    pepper: bytes = field(repr=False)
    _secret: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._secret = hmac.digest(self.pepper, _LABEL, "sha256")

    def issue(self, key: Key, now: float) -> bytes:
        """Return a delegation for a caller that auth has just accepted. Raises DelegationRefused if it is too long."""
        message = Delegation(
            tenant_id=key.tenant_id, key_id=key.key_id, expires_at_unix_s=int(now + DELEGATION_TTL_S), issuer=key.issuer
        )
        if key.issuer:
            message.priority = key.priority
            message.is_limited_to_models = key.models is not None
            message.models.extend(sorted(key.models or ()))
        content = message.SerializeToString()
        if MAC_BYTES + len(content) > DELEGATION_BYTES:
            text = f"the token of {key.key_id} names too many models for a batch; use an API key, or a token with fewer"
            raise DelegationRefused(text)
        return self._mac(content) + content

    def read(self, delegation: bytes) -> Delegation | None:
        """Return the content of a delegation of auth, expired or not; None for any other."""
        mac, content = delegation[:MAC_BYTES], delegation[MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(content)):
            return None
        try:
            return Delegation.FromString(content)
        except DecodeError:  # of another release
            return None

    def verify(self, delegation: bytes, now: float) -> Delegation:
        """Return the content of a delegation. Raises DelegationInvalid or DelegationExpired."""
        found = self.read(delegation)
        if found is None:
            raise DelegationInvalid("the delegation is not one of auth; create the batch again")
        if found.expires_at_unix_s <= now:
            raise DelegationExpired(f"the delegation of key {found.key_id} has expired; create the batch again")
        return found

    def _mac(self, content: bytes) -> bytes:
        return hmac.digest(self._secret, content, "sha256")[:MAC_BYTES]


def key_of_token(delegation: Delegation) -> Key:
    """Return the caller whose token was delegated."""
    return Key(
        key_id=delegation.key_id,
        tenant_id=delegation.tenant_id,
        digest=b"",
        created_at=0.0,
        priority=delegation.priority,
        models=frozenset(delegation.models) if delegation.is_limited_to_models else None,
        issuer=delegation.issuer,
    )
