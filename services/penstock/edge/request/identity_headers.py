"""Identity headers: callers that auth has identified for a proxy. No clock; `now` is an argument.

A header is accepted only from a connection of our own proxy, which the caller of this module knows. It replaces the
round trip of `identify`. It reserves nothing: auth checks the credential of each reservation.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.mesh.identity_header import key_number_of, verified_claims
from penstock.mesh.v1.admission_pb2 import Credential, Identity, IdentityKeys

MAX_AUTHS = 64  # addresses whose keys are kept


class _AuthKeys(NamedTuple):
    """Keys of one auth process."""

    secrets: dict[int, tuple[bytes, float]]  # by number: secret, and the time in s at which it expires
    clock_offset: float  # s from our clock to that of auth; a delay of the frame makes headers live longer by as much


@dataclass(eq=False)
class IdentityHeaders:
    """Verifies headers with the keys that auth sent."""

    accepted: int = 0
    rejected: int = 0
    _keys: dict[str, _AuthKeys] = field(default_factory=dict, repr=False)  # by address of auth

    def on_keys(self, address: str, frame: IdentityKeys, now: float) -> None:
        """Replace the keys of one auth process."""
        if address not in self._keys and len(self._keys) >= MAX_AUTHS:
            del self._keys[next(iter(self._keys))]
        secrets = {each.number: (each.secret, now + each.time_left_nanos / 1e9) for each in frame.keys}
        self._keys[address] = _AuthKeys(secrets, frame.clock_nanos / 1e9 - now)

    def verify(self, header: str, credential: Credential, now: float) -> Identity | None:
        """Return the identity of a valid header that belongs to this credential; None for any other."""
        identity = self._verify(header, credential, now)
        if identity:
            self.accepted += 1
        else:
            self.rejected += 1
        return identity

    def _verify(self, header: str, credential: Credential, now: float) -> Identity | None:
        number = key_number_of(header)
        for keys in self._keys.values():
            secret, expires_at = keys.secrets.get(number, (b"", 0.0)) if number is not None else (b"", 0.0)
            if not secret or now >= expires_at:
                continue
            claims = verified_claims(secret, header, credential.bearer, loopback=credential.loopback)
            if claims and now + keys.clock_offset < claims.expires_ms / 1e3:
                return Identity(
                    tenant_id=claims.tenant_id,
                    priority=claims.priority,  # type: ignore[arg-type]  # as auth sent it
                    weight=claims.weight,
                    key_id=claims.key_id,
                    allowed_regions=claims.allowed_regions,
                )
        return None
