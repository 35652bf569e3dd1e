"""The caller of a request at a proxy: its credential and the source by which its failures are counted."""

from collections.abc import Mapping

from penstock.chassis.addresses import is_loopback, is_this_host, source_of
from penstock.mesh.credential_headers import bearer_of
from penstock.mesh.v1.admission_pb2 import Credential

FORWARDED_FOR = "x-forwarded-for"


def caller_of(headers: Mapping[str, str], proxy: str, *, trusted_hops: int) -> Credential:
    """Return the credential of the request with `headers`. `proxy` is the address of the proxy that asks.

    The proxy has appended its client to x-forwarded-for. Behind `trusted_hops` further proxies, which do the same, the
    source is that many entries before it. A caller counts as on loopback as at an edge: if the proxy and every listed
    hop are on this host.
    """
    hops = [each.strip() for each in headers.get(FORWARDED_FOR, "").split(",")]
    return Credential(
        bearer=bearer_of(headers),
        loopback=is_loopback(proxy) and all(map(is_this_host, hops)),
        source=source_of(hops[max(0, len(hops) - 1 - trusted_hops)]) or source_of(hops[-1]),
    )


def is_grpc(headers: Mapping[str, str]) -> bool:
    return headers.get("content-type", "").startswith("application/grpc")
