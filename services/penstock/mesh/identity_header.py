"""The header by which a proxy passes on who its caller is: `x-penstock-identity`, signed by auth, verified by edges.

It is readable and has no secret: version, key number, expiry, class, weight, tenant, key id and allowed regions, then a
MAC. The MAC also covers the caller's credential, so that the header is worth nothing beside another one.
"""

import base64
import binascii
import hashlib
import hmac
import struct
from typing import NamedTuple

HEADER = "x-penstock-identity"
MAX_HEADER_CHARS = 2_048
MAC_BYTES = 16
VERSION = 2  # an edge asks auth about a caller whose header has another version
# Version, key number, expiry in ms, class, weight, and the lengths of tenant, key id and the list of regions.
_PAYLOAD = struct.Struct(">BIQBfBBH")
_AUDIENCE = b"penstock edge identity 1"


class HeaderClaims(NamedTuple):
    """What auth says of a caller."""

    key_number: int
    expires_ms: int  # of the clock of auth
    priority: int
    weight: float
    tenant_id: str
    key_id: str
    allowed_regions: tuple[str, ...]  # empty: all


def signed_header(secret: bytes, claims: HeaderClaims, bearer: str, *, loopback: bool) -> str:
    tenant, key, regions = claims.tenant_id.encode(), claims.key_id.encode(), ",".join(claims.allowed_regions).encode()
    payload = _PAYLOAD.pack(VERSION, *claims[:4], len(tenant), len(key), len(regions)) + tenant + key + regions
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
    version, key_number, expires_ms, priority, weight, tenant_bytes, key_bytes, region_bytes = _PAYLOAD.unpack_from(
        payload
    )
    names, key_end = payload[_PAYLOAD.size :], tenant_bytes + key_bytes
    if version != VERSION or len(names) != key_end + region_bytes:
        return None
    tenant, key = names[:tenant_bytes].decode(), names[tenant_bytes:key_end].decode()
    allowed = tuple(names[key_end:].decode().split(",")) if region_bytes else ()
    return HeaderClaims(key_number, expires_ms, priority, weight, tenant, key, allowed)


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
