"""The caller of a request at a proxy: its credential and the source by which its failures are counted."""

from collections.abc import Mapping

from penstock.chassis.addresses import is_loopback, is_this_host, source_of
from penstock.mesh.limits.bounds import BEARER_CHARS
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.mesh.v1.authorization_pb2 import CheckRequest

FORWARDED_FOR = "x-forwarded-for"


def caller_of(request: CheckRequest, proxy: str, *, trusted_hops: int) -> Credential:
    """Return the credential of a checked request. `proxy` is gRPC's name of the proxy that asks.

    The proxy has appended its client to x-forwarded-for. Behind `trusted_hops` further proxies, which do the same, the
    source is that many entries before it. A caller counts as on loopback as at an edge: if the proxy and every listed
    hop are on this host.
    """
    headers = request.attributes.request.http.headers
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    address = request.attributes.source.address.socket_address.address
    return Credential(
        bearer=bearer.strip()[:BEARER_CHARS] if scheme.lower() == "bearer" else "",
        loopback=is_loopback(proxy) and is_this_host(address) and _is_forwarded_from_this_host(headers),
        source=_source(headers, address, trusted_hops),
    )


def is_grpc(request: CheckRequest) -> bool:
    return request.attributes.request.http.headers.get("content-type", "").startswith("application/grpc")


def _is_forwarded_from_this_host(headers: Mapping[str, str]) -> bool:
    return all(is_this_host(hop.strip()) for hop in headers.get(FORWARDED_FOR, "127.0.0.1").split(","))


def _source(headers: Mapping[str, str], address: str, trusted_hops: int) -> str:
    if trusted_hops:
        hops = headers.get(FORWARDED_FOR, "").split(",")
        return source_of(hops[max(0, len(hops) - 1 - trusted_hops)]) or source_of(address)
    return source_of(address)
