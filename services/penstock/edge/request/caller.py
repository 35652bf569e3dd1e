"""The caller's credential, from the connection and its headers."""

from collections.abc import Iterable
from functools import cache, lru_cache
from ipaddress import ip_address
from urllib.parse import unquote

import psutil

from penstock.mesh.v1.admission_pb2 import Credential

FORWARDED_FOR = "x-forwarded-for"
PROXY_HEADER_PREFIXES = ("x-envoy-", "x-forwarded-", "x-real-ip", "forwarded", "via")
MAX_BEARER_CHARS = 4_096


def credential_of(headers: Iterable[tuple[str, str | bytes]], peer: str) -> Credential:
    """Return the credential of a caller. `peer` is its address as in gRPC (ipv4:..., ipv6:..., unix:...) or host:port.

    A caller counts as on loopback if the connection comes from loopback and, behind a proxy that sets x-forwarded-for,
    every listed hop is this host. A client can add false hops before the proxy's own entry but cannot remove that
    entry. Behind a proxy that hides its client's address, no caller counts as on loopback.
    """
    headers_by_name: dict[str, str] = {}
    for name, value in headers:
        if isinstance(value, str):
            before = headers_by_name.get(name.lower())
            headers_by_name[name.lower()] = value if before is None else f"{before},{value}"
    scheme, _, bearer = headers_by_name.get("authorization", "").partition(" ")
    return Credential(
        bearer=bearer.strip()[:MAX_BEARER_CHARS] if scheme.lower() == "bearer" else "",
        loopback=is_loopback(peer) and _is_forwarded_from_loopback(headers_by_name),
    )


def _is_forwarded_from_loopback(headers: dict[str, str]) -> bool:
    if FORWARDED_FOR in headers:
        return all(_is_this_host(hop.strip()) for hop in headers[FORWARDED_FOR].split(","))
    return not any(name.startswith(PROXY_HEADER_PREFIXES) for name in headers)


def _is_this_host(hop: str) -> bool:
    """Return whether a hop is this host. Envoy writes its host's first outward address for a client on loopback."""
    return is_loopback(hop) or hop in own_addresses()


@cache
def own_addresses() -> frozenset[str]:
    """Return the addresses of this host's interfaces at the first call."""
    return frozenset(each.address for found in psutil.net_if_addrs().values() for each in found)


@lru_cache(maxsize=4_096)  # one entry per connection, each with many requests
def is_loopback(peer: str) -> bool:
    """Return true for 127.0.0.0/8, ::1 and Unix sockets, and false for text that is not an address."""
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
