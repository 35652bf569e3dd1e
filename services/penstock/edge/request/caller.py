"""The caller's credential, from the connection and its headers."""

from collections.abc import Iterable

from penstock.chassis.addresses import is_loopback, is_this_host, source_of
from penstock.edge.request.validation import is_request_id
from penstock.mesh.credential_headers import bearer_of
from penstock.mesh.identity_header import HEADER as IDENTITY_HEADER
from penstock.mesh.proxy_time import HEADER as PROXY_TIME_HEADER
from penstock.mesh.v1.admission_pb2 import Credential

REQUEST_ID = "x-request-id"
FORWARDED_FOR = "x-forwarded-for"
PROXY_HEADER_PREFIXES = ("x-envoy-", "x-forwarded-", "x-real-ip", "forwarded", "via")


def credential_of(headers: Iterable[tuple[str, str | bytes]], peer: str, *, via_proxy: bool = False) -> Credential:
    """Return the credential of a caller. `peer` is its address as in gRPC (ipv4:..., ipv6:..., unix:...) or host:port.

    A caller counts as on loopback if the connection comes from loopback and, behind a proxy that sets x-forwarded-for,
    every listed hop is this host. A client can add false hops before the proxy's own entry but cannot remove that
    entry. Behind a proxy that hides its client's address, no caller counts as on loopback.

    `via_proxy`: the peer is our proxy, whose own entry in x-forwarded-for is the source of failures. Otherwise only a
    peer on this host is believed.
    """
    headers_by_name: dict[str, str] = {}
    for name, value in headers:
        if isinstance(value, str):
            before = headers_by_name.get(name.lower())
            headers_by_name[name.lower()] = value if before is None else f"{before},{value}"
    is_local = is_loopback(peer)
    hops = headers_by_name.get(FORWARDED_FOR, "") if via_proxy or is_local else ""
    return Credential(
        bearer=bearer_of(headers_by_name),
        loopback=is_local and _is_forwarded_from_loopback(headers_by_name),
        source=source_of(hops.rpartition(",")[2] or peer),
    )


def identity_header_of(headers: Iterable[tuple[str, str | bytes]]) -> str:
    """Return the identity header; empty if there is none, or more than one."""
    found = [value for name, value in headers if name.lower() == IDENTITY_HEADER]
    return found[0] if len(found) == 1 and isinstance(found[0], str) else ""


def request_id_of(headers: Iterable[tuple[str, str | bytes]]) -> str:
    """Return the id that a client or a proxy gave the call; empty if there is none, or it is not valid."""
    for name, value in headers:
        if name == REQUEST_ID and isinstance(value, str):
            return value if is_request_id(value) else ""
    return ""


def proxy_time_of(headers: Iterable[tuple[str, str | bytes]]) -> str:
    """Return the time that a proxy wrote into a call; empty if it wrote none."""
    for name, value in headers:
        if name == PROXY_TIME_HEADER and isinstance(value, str):
            return value
    return ""


def _is_forwarded_from_loopback(headers: dict[str, str]) -> bool:
    if FORWARDED_FOR in headers:
        return all(is_this_host(hop.strip()) for hop in headers[FORWARDED_FOR].split(","))
    return not any(name.startswith(PROXY_HEADER_PREFIXES) for name in headers)
