"""False processes: a hello of each tier on each stream between tiers, with every kind of credentials.

With the certificates of a mesh, each true process also calls the streams that are for other tiers.
"""

import ssl
from collections.abc import Iterator
from dataclasses import replace

from penstock.proofs.hostile.certificates import Credentials, client_context
from penstock.proofs.hostile.corpus.case import (
    CaseOutcome,
    HostileCase,
    call_outcome,
    http_outcome,
    reached_handler,
    stays_open,
)
from penstock.proofs.hostile.corpus.malformed_messages import INNER_METHODS, XDS_METHODS
from penstock.proofs.hostile.corpus.tier_streams import TIER_STREAMS, TIERS, TierStream
from penstock.proofs.hostile.ports import Port, PortKind
from penstock.proofs.hostile.target import HostileTarget
from penstock.proofs.hostile.wire import http1
from penstock.proofs.hostile.wire.grpc_call import call, framed

GROUP = "impersonation"
_LISTENERS = b"type.googleapis.com/envoy.config.listener.v3.Listener"
# Requests for all listeners: `type_url` is the fourth field of a state-of-the-world request and the second of a delta.
XDS_REQUESTS = tuple(bytes([tag, len(_LISTENERS)]) + _LISTENERS for tag in (0x22, 0x12))


def impersonation_cases(target: HostileTarget) -> Iterator[HostileCase]:
    for stream in TIER_STREAMS:
        for port in target.ports_of(stream.server):
            for credentials, tls, instance_id in target.credentials_of(stream.client):
                for tier in TIERS:
                    name = f"{stream.method} as {tier or 'no tier'}, {credentials}"
                    yield _hello_case(name, port, stream, stream.hello(tier, instance_id), tls)
            for tier, leaf in target.leaves.items():
                if tier != stream.client:
                    name, hello = f"{stream.method} by the true {tier}", stream.hello(tier, leaf.instance_id)
                    yield _hello_case(name, port, stream, hello, client_context(leaf))
    for credentials, tls, _ in target.credentials_of("edge"):
        if credentials is not Credentials.RIGHT:
            for port in target.ports_of(PortKind.WORKER):
                yield _unary_case(f"GetModelCard, {credentials}", port, INNER_METHODS[port.kind][1], tls)
    for credentials, tls, _ in target.credentials_of("envoy"):
        if credentials is not Credentials.RIGHT:
            for port in target.ports_of(PortKind.ROUTING):
                for method, request in zip(XDS_METHODS, XDS_REQUESTS, strict=True):
                    name = f"{method.rpartition('/')[2]}, {credentials}"
                    yield _unary_case(name, port, method, tls, request)
            for port in target.ports_of(PortKind.CHECKS):
                yield _check_case(f"check, {credentials}", port, tls, target.api_key)
    for tier, leaf in target.leaves.items():
        if tier != "envoy":
            for port in target.ports_of(PortKind.CHECKS):
                yield _check_case(f"check by the true {tier}", port, client_context(leaf), target.api_key)


def _hello_case(name: str, port: Port, stream: TierStream, hello: bytes, tls: ssl.SSLContext | None) -> HostileCase:
    async def send() -> CaseOutcome:
        result = await call(port.endpoint, stream.path, hello, tls=tls, ends=False)
        return call_outcome(result, accepted=stays_open(result))

    return HostileCase(group=GROUP, name=name, port=port, send=send)


def _check_case(name: str, port: Port, tls: ssl.SSLContext | None, api_key: str) -> HostileCase:
    """Ask auth for the identity of a caller, as a proxy does."""
    request = http1.request("POST", "/check", [("Authorization", f"Bearer {api_key}")])

    async def send() -> CaseOutcome:
        result = await http1.exchange(port.endpoint, request, tls=tls)
        return replace(http_outcome(result), is_accepted=bool(result.statuses))

    return HostileCase(group=GROUP, name=name, port=port, send=send)


def _unary_case(name: str, port: Port, method: str, tls: ssl.SSLContext | None, request: bytes = b"") -> HostileCase:
    async def send() -> CaseOutcome:
        result = await call(port.endpoint, method, framed(request), tls=tls)
        return call_outcome(result, accepted=reached_handler(result))

    return HostileCase(group=GROUP, name=name, port=port, send=send)
