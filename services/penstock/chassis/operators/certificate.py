"""The identity of a peer's certificate, as far as operators need it."""

from typing import Any, NamedTuple

SPIFFE_SCHEME = "spiffe://"
OPERATOR_TIER = "operator"


class Certificate(NamedTuple):
    """The identity in the URI of a certificate: `spiffe://<trust domain>/penstock/<tier>/<instance>`."""

    trust_domain: str
    tier: str
    instance_id: str  # of an operator: the operator's name


def certificate_of(context: Any) -> Certificate | None:
    """Return the peer's certificate, which TLS has verified; None on a plaintext or unix connection."""
    for uri in context.auth_context().get("peer_spiffe_id", ()):
        if found := parse_uri(uri.decode(errors="replace")):
            return found
    return None


def parse_uri(uri: str) -> Certificate | None:
    """Return the identity; None if the URI has another form."""
    parts = uri.removeprefix(SPIFFE_SCHEME).split("/")
    if not uri.startswith(SPIFFE_SCHEME) or len(parts) != 4 or parts[1] != "penstock" or not all(parts):
        return None
    return Certificate(parts[0], parts[2], parts[3])
