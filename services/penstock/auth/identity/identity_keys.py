"""Identity keys: the MAC keys of identity headers, rotated by time. No clock; `now` is an argument."""

import secrets
from dataclasses import dataclass, field

from penstock.chassis.durations import nanos_left
from penstock.mesh.identity_header import HeaderClaims, signed_header
from penstock.mesh.v1.admission_pb2 import Credential, Identity, IdentityKey, IdentityKeys

HEADER_TTL_S = 20.0  # s; longer than a proxy needs for a request's headers
ROTATION_S = 3_600.0  # s
SECRET_BYTES = 32


@dataclass(slots=True)
class _Key:
    signs_until: float  # s
    number: int = field(default_factory=lambda: secrets.randbits(32))  # random, as edges hold keys of several processes
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(SECRET_BYTES), repr=False)

    @property
    def verifies_until(self) -> float:
        return self.signs_until + HEADER_TTL_S


class IdentityKeyRing:
    """The signing key and its predecessor, which is valid until the last header that it signed has expired."""

    def __init__(self, now: float) -> None:
        self._zero = now  # of the clock that edges receive, which is not the time of day
        self._keys = [_Key(now + ROTATION_S)]

    def rotate(self, now: float) -> bool:
        """Replace a signing key that is too old, and drop expired keys. Return whether the keys changed."""
        before = len(self._keys)
        if now >= self._keys[-1].signs_until:
            self._keys.append(_Key(now + ROTATION_S))
            before = 0
        self._keys = [each for each in self._keys if now < each.verifies_until]
        return len(self._keys) != before

    def sign(self, identity: Identity, credential: Credential, now: float) -> str:
        """Return the header for a caller of a proxy."""
        key = self._keys[-1]
        claims = HeaderClaims(
            key.number,
            self._millis(now + HEADER_TTL_S),
            identity.priority,
            identity.weight,
            identity.tenant_id,
            identity.key_id,
            tuple(identity.allowed_regions),
        )
        return signed_header(key.secret, claims, credential.bearer, loopback=credential.loopback)

    def frame(self, now: float) -> IdentityKeys:
        """Return the keys for edges. Edges must receive it regularly, because their clocks run differently."""
        keys = [
            IdentityKey(number=each.number, secret=each.secret, time_left_nanos=nanos_left(each.verifies_until, now))
            for each in self._keys
        ]
        return IdentityKeys(keys=keys, clock_nanos=round((now - self._zero) * 1e9))

    def _millis(self, at: float) -> int:
        return round((at - self._zero) * 1_000)
