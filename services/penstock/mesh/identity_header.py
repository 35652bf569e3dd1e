"""The header by which a proxy passes on who its caller is: `x-penstock-identity`, signed by auth, verified by edges.

It is readable and has no secret: version, key number, expiry, class, weight, tenant and key id, then a MAC. The MAC
also covers the caller's credential, so that the header is worth nothing beside another one.
"""

import base64
import binascii
import hashlib
import hmac
import struct
from typing import NamedTuple

HEADER = "x-penstock-identity"
MAX_HEADER_CHARS = 1_024
MAC_BYTES = 16
VERSION = 1
_PAYLOAD = struct.Struct(">BIQBfBB")  # version, key number, expiry in ms, class, weight, length of tenant and key id
_AUDIENCE = b"penstock edge identity 1"


class HeaderClaims(NamedTuple):
    """What auth says of a caller."""

    key_number: int
    expires_ms: int  # of the clock of auth
    priority: int
    weight: float
    tenant_id: str
    key_id: str


def signed_header(secret: bytes, claims: HeaderClaims, bearer: str, *, loopback: bool) -> str:
    tenant, key = claims.tenant_id.encode(), claims.key_id.encode()
    payload = _PAYLOAD.pack(VERSION, *claims[:4], len(tenant), len(key)) + tenant + key
    signed = payload + _mac(secret, payload, bearer, loopback=loopback)
    return base64.urlsafe_b64encode(signed).rstrip(b"=").decode()


def key_number_of(header: str) -> int | None:
    """Return the number of the key that a header says it is signed with; None if it has no such form."""
    raw = _decoded(header)
    return None if raw is None else int(_PAYLOAD.unpack_from(raw)[1])


def verified_claims(secret: bytes, header: str, bearer: str, *, loopback: bool) -> HeaderClaims | None:
    """Return the claims of a header that was signed with `secret` for this credential; None for any other."""
    raw = _decoded(header)
    if raw is None:
        return None
    payload, mac = raw[:-MAC_BYTES], raw[-MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(secret, payload, bearer, loopback=loopback)):
        return None
    version, key_number, expires_ms, priority, weight, tenant_bytes, key_bytes = _PAYLOAD.unpack_from(payload)
    names = payload[_PAYLOAD.size :]
    if version != VERSION or len(names) != tenant_bytes + key_bytes:
        return None
    tenant, key = names[:tenant_bytes].decode(), names[tenant_bytes:].decode()
    return HeaderClaims(key_number, expires_ms, priority, weight, tenant, key)


def _decoded(header: str) -> bytes | None:
    if len(header) > MAX_HEADER_CHARS:
        return None
    try:
        raw = base64.b64decode(header.encode() + b"=" * (-len(header) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if len(raw) >= _PAYLOAD.size + MAC_BYTES else None


def _mac(secret: bytes, payload: bytes, bearer: str, *, loopback: bool) -> bytes:
    caller = hashlib.sha256(bearer.encode()).digest() + (b"\1" if loopback else b"\0")
    return hmac.digest(secret, _AUDIENCE + caller + payload, "sha256")[:MAC_BYTES]
