"""Fallback grants: proofs that auth allowed one edge to admit requests of one key while auth is unreachable."""

import hmac
import secrets
import struct
from dataclasses import dataclass, field

from penstock.chassis.errors import PermissionDenied

MAC_BYTES = 16
ISSUER_BYTES = 8
VERSION = 1
_PAYLOAD = struct.Struct(">B8sQId")  # version, issuer, number, tokens, expiry in s of the clock of auth
_LABEL = b"penstock fallback grant 1"

# Time is measured by the edge (its age of an admission) and by auth (the expiry). Both clocks run; neither is exact.
MAX_CLOCK_DRIFT = 0.05  # share of the age
# The clock of a former process may have differed by a step of the host's clock in between.
MAX_CLOCK_STEP_S = 3_600.0
MAX_DELIVERY_S = 60.0  # s that a grant may be on its way; the edge counts its time from the arrival
MAX_ADMISSION_AGE_S = 86_400.0  # s for which an edge may hold an admission that auth could not record
# s from the expiry of a grant until every use of it is rejected.
MEMORY_S = MAX_ADMISSION_AGE_S * (1 + MAX_CLOCK_DRIFT) + MAX_DELIVERY_S + 2 * MAX_CLOCK_STEP_S


class GrantInvalid(PermissionDenied):
    """An edge admitted a request of a key without a grant of auth, or beyond it."""

    default_reason = "GRANT_INVALID"


@dataclass(frozen=True, slots=True)
class Grant:
    """A verified grant. It belongs to the edge and the key for which it was verified."""

    grant_id: bytes
    tokens: int
    forget_at: float  # s of the clock of auth, from which no use of it is accepted


@dataclass(slots=True)
class GrantIssuer:
    """Issues and verifies grants. Its secret outlives the process, so that grants survive a restart of auth.

    The MAC covers the edge and the key, which are not in the grant: the edge names the key, and its stream names it.
    """

    pepper: bytes = field(repr=False)
    ttl: float  # s for which an edge may admit requests under a grant
    _secret: bytes = field(init=False, repr=False)
    _issuer: bytes = field(init=False)  # of this process
    _number: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._secret = hmac.digest(self.pepper, _LABEL, "sha256")
        self._issuer = secrets.token_bytes(ISSUER_BYTES)

    def issue(self, edge_id: str, key_id: str, tokens: int, now: float) -> bytes:
        self._number += 1
        payload = _PAYLOAD.pack(VERSION, self._issuer, self._number, tokens, now + self.ttl)
        return payload + self._mac(payload, edge_id, key_id)

    def verify(self, grant: bytes, edge_id: str, key_id: str, age: float, now: float) -> Grant:
        """Return the grant under which an edge admitted a request `age` s ago. Raises GrantInvalid."""
        payload, mac = grant[: _PAYLOAD.size], grant[_PAYLOAD.size :]
        if len(payload) < _PAYLOAD.size or not hmac.compare_digest(mac, self._mac(payload, edge_id, key_id)):
            raise GrantInvalid(f"the grant is not one of auth for edge {edge_id!r} and key {key_id!r}")
        version, issuer, number, tokens, expires_at = _PAYLOAD.unpack(payload)
        if version != VERSION:
            raise GrantInvalid(f"grants of version {version} are not supported")
        tolerance = MAX_DELIVERY_S + age * MAX_CLOCK_DRIFT + (0.0 if issuer == self._issuer else MAX_CLOCK_STEP_S)
        if age > MAX_ADMISSION_AGE_S or now - age > expires_at + tolerance:
            raise GrantInvalid(f"the grant of edge {edge_id!r} for key {key_id!r} expired before the admission")
        return Grant(issuer + number.to_bytes(8, "big"), tokens, expires_at + MEMORY_S)

    def _mac(self, payload: bytes, edge_id: str, key_id: str) -> bytes:
        edge = edge_id.encode()
        names = b"%d:%b%b" % (len(edge), edge, key_id.encode())
        return hmac.digest(self._secret, payload + names, "sha256")[:MAC_BYTES]
