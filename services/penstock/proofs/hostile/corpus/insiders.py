"""A true process that has turned hostile: frames out of their ranges, and vouching for other tenants.

It connects as its certificate says, so that the stream itself is no success. The cases run after the honest load has
ended, because a mesh may treat the hostile stream as a second one of the true process.
"""

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message

from penstock.mesh.limits.bounds import DELEGATION_BYTES
from penstock.mesh.v1.admission_pb2 import (
    AdmitRequest,
    Credential,
    FallbackAdmission,
    Identify,
    Reserve,
    Settle,
)
from penstock.mesh.v1.delegation_pb2 import Delegation
from penstock.mesh.v1.queue_pb2 import Enqueue, SubmitRequest
from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.proofs.hostile.corpus.case import CaseOutcome, HostileCase, call_outcome, stays_open
from penstock.proofs.hostile.corpus.tier_streams import ADMIT, SUBMIT, TIER_STREAMS, TierStream
from penstock.proofs.hostile.corpus.wrong_frames import wrong_frames
from penstock.proofs.hostile.ports import Port
from penstock.proofs.hostile.target import HostileTarget
from penstock.proofs.hostile.wire.grpc_call import call, framed

VOUCH_GAINS = {"admitted", "identified"}
TICKET_GAINS = {"queued", "leased"}


def insider_cases(target: HostileTarget) -> Iterator[HostileCase]:
    for stream in TIER_STREAMS:
        for port in target.ports_of(stream.server):
            yield _control(target, stream, port)
            for path, frame in wrong_frames(stream.request):
                yield _wrong_frame_case(target, stream, port, path, frame.SerializeToString())
    for port in target.ports_of(ADMIT.server):
        for name, frame in _vouchers(target.api_key):
            yield _gain_case(target, ADMIT, port, name, frame, group="vouching", gains=VOUCH_GAINS)
    for port in target.ports_of(SUBMIT.server):
        for name, ticket in _wrong_tickets(target.model):
            enqueue = SubmitRequest(enqueue=Enqueue(tickets=[ticket]))
            yield _gain_case(target, SUBMIT, port, name, enqueue, group="wrong tickets", gains=TICKET_GAINS)


def _control(target: HostileTarget, stream: TierStream, port: Port) -> HostileCase:
    """Check that the mesh takes the insider for a true process: otherwise refusals prove nothing about its frames."""

    async def send() -> CaseOutcome:
        tls, instance_id = target.insider(stream.client)
        result = await call(port.endpoint, stream.path, stream.hello(stream.client, instance_id), tls=tls, ends=False)
        if not stays_open(result):
            raise RuntimeError(f"{port.kind} refuses the hello of a true {stream.client}: {result}")
        return call_outcome(result, accepted=False)

    return HostileCase(group="controls", name=f"{stream.method} by a true {stream.client}", port=port, send=send)


def _wrong_frame_case(target: HostileTarget, stream: TierStream, port: Port, path: str, frame: bytes) -> HostileCase:
    """A wrong frame is accepted if its stream goes on."""

    async def send() -> CaseOutcome:
        tls, instance_id = target.insider(stream.client)
        body = stream.hello(stream.client, instance_id) + framed(frame)
        result = await call(port.endpoint, stream.path, body, tls=tls, ends=False)
        return call_outcome(result, accepted=result.is_open or result.is_ok)

    return HostileCase(group="wrong frames", name=f"{stream.method} {path}", port=port, send=send)


def _gain_case(
    target: HostileTarget, stream: TierStream, port: Port, name: str, frame: Message, *, group: str, gains: set[str]
) -> HostileCase:
    """A frame about one request is accepted if the answer is of a kind in `gains`."""

    async def send() -> CaseOutcome:
        tls, instance_id = target.insider(stream.client)
        body = stream.hello(stream.client, instance_id) + framed(frame.SerializeToString())
        result = await call(port.endpoint, stream.path, body, tls=tls, ends=False)
        return call_outcome(result, accepted=bool(stream.kinds_of(result.messages) & gains))

    return HostileCase(group=group, name=name, port=port, send=send)


def _vouchers(api_key: str) -> Iterator[tuple[str, AdmitRequest]]:
    """Yield reservations without a credential, and credentials that a stranger can make up."""
    key_id = api_key.split("_")[1]
    fallbacks = {
        "for a tenant's key": FallbackAdmission(key_id=key_id),
        "for an unknown key": FallbackAdmission(key_id="other"),
        "for an empty key": FallbackAdmission(key_id=""),
        "for a pattern": FallbackAdmission(key_id="%"),
        "for SQL": FallbackAdmission(key_id="' OR ''='"),
    }
    for name, fallback in fallbacks.items():
        for tokens in (1, 1 << 20):
            reserve = Reserve(
                request_id=f"hostile-{name}-{tokens}",
                prompt_tokens=tokens,
                max_output_tokens=tokens,
                fallback_admission=fallback,
            )
            yield f"{name}, {tokens} tokens", AdmitRequest(reserve=reserve)
    content = Delegation(tenant_id="dev", key_id=key_id, expires_at_unix_s=(1 << 64) - 1).SerializeToString()
    forged = {
        "no credential": Credential(loopback=True),
        "key id as a credential": Credential(bearer=key_id, loopback=True),
        "key id and other secret": Credential(bearer=f"pk_{key_id}_{'0' * 32}", loopback=True),
        "JSON identity": Credential(bearer='{"tenant_id":"dev"}', loopback=True),
        "key id as a delegation": Credential(delegation=key_id.encode()),
        "delegation without a MAC": Credential(delegation=content),
        "delegation with a false MAC": Credential(delegation=bytes(16) + content),
        "longest delegation": Credential(delegation=bytes(DELEGATION_BYTES)),
        "SPIFFE identity": Credential(bearer="spiffe://penstock.local/penstock/edge/edge-1", loopback=True),
    }
    for name, credential in forged.items():
        for delegates in (False, True):
            identify = Identify(request_id="hostile", credential=credential, delegates=delegates)
            yield f"{'delegate' if delegates else 'identify'} with {name}", AdmitRequest(identify=identify)
        reserve = Reserve(request_id=f"hostile {name}", credential=credential, prompt_tokens=1, max_output_tokens=1)
        yield f"reserve with {name}", AdmitRequest(reserve=reserve)
    yield "settlement of an unknown reservation", AdmitRequest(settle=Settle(reservation_id="r", output_tokens=1))


def _wrong_tickets(model: str) -> Iterator[tuple[str, Ticket]]:
    """Yield tickets that no edge makes of an admitted request."""
    valid: dict[str, Any] = {
        "ticket_id": "hostile",
        "tenant_id": "dev",
        "priority": 1,
        "weight": 1.0,
        "model": f"{model}@none",
    }
    valid |= {"prompt_tokens": 8, "max_output_tokens": 8, "attempt": 1}
    changes: dict[str, dict[str, Any]] = {
        "weight of 1e30": {"weight": 1e30},
        "weight of NaN": {"weight": float("nan")},
        "weight of -1": {"weight": -1.0},
        "weight of 0": {"weight": 0.0},
        "age of 584 years": {"age_nanos": 2**64 - 1},
        "deadline in 584 years": {"time_left_nanos": 2**64 - 1},
        "unknown priority": {"priority": 99},
        "prompt of 2**32 - 1 tokens": {"prompt_tokens": 2**32 - 1},
        "output of 2**32 - 1 tokens": {"max_output_tokens": 2**32 - 1},
        "attempt 2**32 - 1": {"attempt": 2**32 - 1},
        "10,000 prefix hashes": {"prefix_hashes": [1] * 10_000},
        "100 avoided workers": {"avoid_workers": ["w"] * 100},
        "id of 4 KiB": {"ticket_id": "t" * 4096},
        "tenant of 4 KiB": {"tenant_id": "t" * 4096},
        "model of 4 KiB": {"model": "m" * 4096},
    }
    for name, changed in changes.items():
        yield name, Ticket(**{**valid, **changed})
