"""Addresses of this host, and the source by which failures of a caller are counted."""

from functools import cache, lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import unquote

import psutil

IPV6_PREFIX_BITS = 64  # a network of one customer


def is_this_host(hop: str) -> bool:
    """Return whether a hop is this host. Envoy writes its host's first outward address for a client on loopback."""
    return is_loopback(hop) or hop in own_addresses()


@cache
def own_addresses() -> frozenset[str]:
    """Return the addresses of this host's interfaces at the first call."""
    return frozenset(each.address for found in psutil.net_if_addrs().values() for each in found)


@lru_cache(maxsize=4_096)  # one entry per connection, each with many requests
def is_loopback(peer: str) -> bool:
    """Return true for 127.0.0.0/8, ::1 and Unix sockets, and false for text that is not an address."""
    if unquote(peer.strip()).startswith("unix:"):
        return True
    ip = address_of(peer)
    return ip is not None and ip.is_loopback


@lru_cache(maxsize=4_096)
def source_of(peer: str) -> str:
    """Return the network whose failures count together: an IPv4 address, or 64 bits of an IPv6 address.

    Empty for a Unix socket and for text that is not an address.
    """
    ip = address_of(peer)
    if ip is None:
        return ""
    return str(ip) if ip.version == 4 else str(ip_network((ip, IPV6_PREFIX_BITS), strict=False).network_address)


def address_of(peer: str) -> IPv4Address | IPv6Address | None:
    """Return the address in gRPC's name of a peer (ipv4:..., ipv6:...), in host:port or alone; None without one."""
    address = unquote(peer.strip()).removeprefix("ipv4:").removeprefix("ipv6:")
    if address.startswith("["):
        address = address[1:].partition("]")[0]
    elif address.count(":") == 1:
        address = address.partition(":")[0]
    try:
        ip = ip_address(address)
    except ValueError:
        return None
    return getattr(ip, "ipv4_mapped", None) or ip
