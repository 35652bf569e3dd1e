"""The identity of a process: trust domain, tier and instance, as the URI name of its certificate states them.

The name is `spiffe://<trust domain>/penstock/<tier>/<instance>`. A certificate also has the DNS names
`<tier>.penstock.internal` and `<instance>.<tier>.penstock.internal`, by which the client of a connection requires a
tier or an instance.
"""

import re
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from penstock.chassis.errors import PermissionDenied
from penstock.v1.stream_pb2 import Hello

TIERS = ("edge", "auth", "queue", "scheduler", "worker", "routing", "batch", "picker", "envoy", "operator", "keda")
DNS_SUFFIX = "penstock.internal"
# An instance id may have a suffix after this character, which differs at each start of one instance.
START_SEPARATOR = "."

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_INSTANCE = re.compile(_LABEL)
_TRUST_DOMAIN = re.compile(rf"(?=.{{1,255}}\Z){_LABEL}(?:\.{_LABEL})*")
_SPIFFE_ID = re.compile(rf"spiffe://(?P<domain>[^/]+)/penstock/(?P<tier>{'|'.join(TIERS)})/(?P<instance>{_LABEL})")
_CACHED_IDENTITIES = 4_096


class IdentityInvalid(ValueError):
    """The text is not the identity of a process of Penstock."""


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """The identity of one process, as its certificate states it."""

    trust_domain: str
    tier: str
    instance_id: str

    @property
    def uri(self) -> str:
        return f"spiffe://{self.trust_domain}/penstock/{self.tier}/{self.instance_id}"

    @property
    def dns_names(self) -> tuple[str, str]:
        return server_name(self.tier), server_name(self.tier, self.instance_id)

    def names(self, instance_id: str) -> bool:
        """Whether `instance_id` is of this instance: equal, or with the suffix of one of its starts."""
        return instance_of(instance_id) == self.instance_id


def new_identity(trust_domain: str, tier: str, instance_id: str) -> PeerIdentity:
    """Raises IdentityInvalid, which names the allowed values."""
    if not _TRUST_DOMAIN.fullmatch(trust_domain):
        raise IdentityInvalid(f"a trust domain is a DNS name in lower case, not {trust_domain[:64]!r}")
    if tier not in TIERS:
        raise IdentityInvalid(f"a tier is one of {', '.join(TIERS)}, not {tier[:64]!r}")
    if not _INSTANCE.fullmatch(instance_id):
        text = f"an instance is 1 to 63 lower-case letters, digits and inner hyphens, not {instance_id[:64]!r}"
        raise IdentityInvalid(text)
    return PeerIdentity(trust_domain, tier, instance_id)


@lru_cache(maxsize=_CACHED_IDENTITIES)
def parse_spiffe_id(uri: str) -> PeerIdentity:
    """Raises IdentityInvalid unless `uri` is exactly `spiffe://<trust domain>/penstock/<tier>/<instance>`."""
    match = _SPIFFE_ID.fullmatch(uri)
    if match is None or not _TRUST_DOMAIN.fullmatch(match["domain"]):
        text = f"{uri[:128]!r} is not spiffe://TRUST_DOMAIN/penstock/TIER/INSTANCE with a tier of {', '.join(TIERS)}"
        raise IdentityInvalid(text)
    return PeerIdentity(match["domain"], match["tier"], match["instance"])


def identity_of_names(certificate: dict[str, Any]) -> PeerIdentity:
    """Return the identity of a certificate in the form of `ssl.SSLSocket.getpeercert`. Raises IdentityInvalid."""
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    if len(uris) != 1:
        raise IdentityInvalid(f"the certificate has {len(uris)} URI names instead of one")
    return parse_spiffe_id(uris[0])


def instance_of(instance_id: str) -> str:
    """Return the instance of an instance id, without the suffix of its start."""
    return instance_id.partition(START_SEPARATOR)[0]


def server_name(tier: str, instance_id: str = "") -> str:
    """Return the DNS name that the certificate of a server must have: of its tier, or of one instance."""
    if not instance_id:
        return f"{tier}.{DNS_SUFFIX}"
    instance = instance_of(instance_id)
    if not _INSTANCE.fullmatch(instance):  # the id came from a peer; no certificate has this name
        instance = "invalid-"
    return f"{instance}.{tier}.{DNS_SUFFIX}"


_last_peer: ContextVar[tuple[Any, PeerIdentity | None]] = ContextVar("last_peer", default=(None, None))


def peer_identity(context: Any) -> PeerIdentity | None:
    """Return the identity of the caller of `context`. None on a plaintext or Unix connection.

    Raises PermissionDenied / PEER_UNIDENTIFIED if the certificate of the caller has no identity.
    """
    known_context, known = _last_peer.get()
    if known_context is context:
        return known
    found = _identity_in(context.auth_context())
    _last_peer.set((context, found))
    return found


def _identity_in(auth_context: Any) -> PeerIdentity | None:
    if auth_context.get("transport_security_type", (b"insecure",))[0] != b"ssl":
        return None
    uris = auth_context.get("peer_spiffe_id", ())  # empty if the certificate has several URI names
    try:
        return parse_spiffe_id(uris[0].decode("utf-8", "replace") if len(uris) == 1 else "")
    except IdentityInvalid as error:
        text = f"{error}; use a certificate with the URI name spiffe://TRUST_DOMAIN/penstock/TIER/INSTANCE"
        raise PermissionDenied(text, reason="PEER_UNIDENTIFIED") from None


def is_from_proxy(context: Any) -> bool:
    """Whether the call arrived through an Envoy that has identified itself by its certificate."""
    identity = peer_identity(context)
    return identity is not None and identity.tier == "envoy"


class HelloMismatch(PermissionDenied):
    """The hello of a peer states another tier or instance than its certificate."""

    default_reason = "HELLO_MISMATCH"


def check_hello(hello: Hello, tier: str, instance_id: str = "") -> None:
    """Raise HelloMismatch unless `hello` is of `tier`, and of the instance `instance_id` if it is given."""
    if hello.tier != tier:
        raise HelloMismatch(f"the hello is of tier {hello.tier[:64]!r}, the certificate of tier {tier!r}")
    if instance_id and instance_of(hello.instance_id) != instance_of(instance_id):
        text = f"the hello is of instance {hello.instance_id[:64]!r}, the certificate of {instance_of(instance_id)!r}"
        raise HelloMismatch(f"{text}; unset INSTANCE_ID of the tier, or use the certificate of that instance")
