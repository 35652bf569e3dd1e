"""False processes: a hello of each tier on each stream between tiers, with every kind of credentials."""

import ssl
from collections.abc import Iterator

from penstock.proofs.hostile.certificates import Credentials
from penstock.proofs.hostile.corpus.case import CaseOutcome, HostileCase, call_outcome, reached_handler, stays_open
from penstock.proofs.hostile.corpus.malformed_messages import INNER_METHODS
from penstock.proofs.hostile.corpus.tier_streams import TIER_STREAMS, TIERS, TierStream
from penstock.proofs.hostile.ports import Port, PortKind
from penstock.proofs.hostile.target import HostileTarget
from penstock.proofs.hostile.wire.grpc_call import call, framed

GROUP = "impersonation"
INTRUDER = "intruder"  # instance id of a false process


def impersonation_cases(target: HostileTarget) -> Iterator[HostileCase]:
    for stream in TIER_STREAMS:
        for port in target.ports_of(stream.server):
            for credentials, tls in target.credentials_of(stream.client):
                yield from _hello_cases(stream, port, credentials, tls)
    for credentials, tls in target.credentials_of("edge"):
        if credentials is not Credentials.RIGHT:
            for port in target.ports_of(PortKind.WORKER):
                yield _unary_case("GetModelCard", port, INNER_METHODS[port.kind][1], credentials, tls)
    for credentials, tls in target.credentials_of("envoy"):
        if credentials is not Credentials.RIGHT:
            for port in target.ports_of(PortKind.ROUTING):
                for method in INNER_METHODS[port.kind]:
                    yield _unary_case(method.rpartition("/")[2], port, method, credentials, tls)


def _hello_cases(
    stream: TierStream, port: Port, credentials: Credentials, tls: ssl.SSLContext | None
) -> Iterator[HostileCase]:
    """Yield hellos of each tier; with the right certificate, each is another hello than the certificate names."""
    for tier in TIERS:
        yield _hello_case(stream, port, tier, credentials, tls)


def _hello_case(
    stream: TierStream, port: Port, tier: str, credentials: Credentials, tls: ssl.SSLContext | None
) -> HostileCase:
    async def send() -> CaseOutcome:
        hello = stream.hello(tier, INTRUDER)
        result = await call(port.endpoint, stream.path, hello, tls=tls, ends=False)
        return call_outcome(result, accepted=stays_open(result))

    name = f"{stream.method} as {tier or 'no tier'}, {credentials}"
    return HostileCase(group=GROUP, name=name, port=port, send=send)


def _unary_case(
    name: str, port: Port, method: str, credentials: Credentials, tls: ssl.SSLContext | None
) -> HostileCase:
    async def send() -> CaseOutcome:
        result = await call(port.endpoint, method, framed(b""), tls=tls)
        return call_outcome(result, accepted=reached_handler(result))

    return HostileCase(group=GROUP, name=f"{name}, {credentials}", port=port, send=send)
