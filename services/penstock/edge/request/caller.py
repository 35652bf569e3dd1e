"""Who called, as far as the connection and its headers show it."""

from collections.abc import Iterable
from functools import cache, lru_cache
from ipaddress import ip_address
from urllib.parse import unquote

import psutil

from penstock.mesh.v1.admission_pb2 import Credential

FORWARDED_FOR = "x-forwarded-for"
PROXY_HEADER_PREFIXES = ("x-envoy-", "x-forwarded-", "x-real-ip", "forwarded", "via")
MAX_BEARER_CHARS = 4_096  # characters


def credential_of(headers: Iterable[tuple[str, str | bytes]], peer: str) -> Credential:
    """Return what a caller showed. `peer` is its address as gRPC says it (ipv4:..., ipv6:..., unix:...) or host:port.

    A caller counts as on loopback when the connection comes from loopback and, where a proxy stood between (it says
    so in x-forwarded-for), every hop it lists is this host: a client can put false hops before the proxy's own entry
    but cannot take that entry away. A proxy that hides its client's address vouches for nobody.
    """
    shown: dict[str, str] = {}
    for name, value in headers:
        if isinstance(value, str):
            before = shown.get(name.lower())
            shown[name.lower()] = value if before is None else f"{before},{value}"
    scheme, _, bearer = shown.get("authorization", "").partition(" ")
    return Credential(
        bearer=bearer.strip()[:MAX_BEARER_CHARS] if scheme.lower() == "bearer" else "",
        loopback=is_loopback(peer) and _is_forwarded_from_loopback(shown),
    )


def _is_forwarded_from_loopback(headers: dict[str, str]) -> bool:
    if FORWARDED_FOR in headers:
        return all(_is_this_host(hop.strip()) for hop in headers[FORWARDED_FOR].split(","))
    return not any(name.startswith(PROXY_HEADER_PREFIXES) for name in headers)


def _is_this_host(hop: str) -> bool:
    """Envoy writes its host's first outward address for a client on loopback, so that counts as well."""
    return is_loopback(hop) or hop in own_addresses()


@cache
def own_addresses() -> frozenset[str]:
    """Addresses of this host's interfaces when first asked."""
    return frozenset(each.address for found in psutil.net_if_addrs().values() for each in found)


@lru_cache(maxsize=4_096)  # connections; each brings many requests
def is_loopback(peer: str) -> bool:
    """True for 127.0.0.0/8, ::1 and Unix sockets; False for what is not an address."""
    address = unquote(peer.strip())
    if address.startswith("unix:"):
        return True
    address = address.removeprefix("ipv4:").removeprefix("ipv6:")
    if address.startswith("["):
        address = address[1:].partition("]")[0]
    elif address.count(":") == 1:
        address = address.partition(":")[0]
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return (mapped or ip).is_loopback
