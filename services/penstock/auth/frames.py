"""Frames that auth sends to edges."""

from penstock.auth.identity.keys import Key
from penstock.auth.models.messages import route_message
from penstock.auth.models.routes import RouteList
from penstock.auth.quota.rejection import LimitsExceeded
from penstock.auth.quota.reservation import Reservation
from penstock.chassis.errors import PenstockError
from penstock.mesh.v1.admission_pb2 import (
    AdmitResponse,
    Admitted,
    Identified,
    Identity,
    NotOwner,
    OwnedPartitions,
    Rejected,
    Residency,
    Routes,
    Settled,
    StoreState,
)
from penstock.v1.stream_pb2 import End


def identified(request_id: str, identity: Identity, delegation: bytes = b"") -> AdmitResponse:
    return AdmitResponse(identified=Identified(request_id=request_id, identity=identity, delegation=delegation))


def admitted(request_id: str, reservation: Reservation, identity: Identity, fallback_tokens: int) -> AdmitResponse:
    answer = Admitted(
        request_id=request_id,
        reservation_id=reservation.reservation_id,
        identity=identity,
        fallback_tokens=fallback_tokens,
    )
    return AdmitResponse(admitted=answer)


def rejected(request_id: str, error: PenstockError, caller: Key | Identity | None = None) -> AdmitResponse:
    answer = Rejected(request_id=request_id, failure=error.failure())
    if caller:
        answer.tenant_id, answer.key_id = caller.tenant_id, caller.key_id
    if isinstance(error, LimitsExceeded) and error.rate_limits:
        answer.rate_limits.CopyFrom(error.rate_limits)
    return AdmitResponse(rejected=answer)


def settled(reservation_id: str) -> AdmitResponse:
    return AdmitResponse(settled=Settled(reservation_id=reservation_id))


def store_state(*, is_unavailable: bool) -> AdmitResponse:
    return AdmitResponse(store_state=StoreState(is_unavailable=is_unavailable))


def owned_partitions(owned: OwnedPartitions) -> AdmitResponse:
    return AdmitResponse(owned_partitions=owned)


def routes(listed: RouteList) -> AdmitResponse:
    return AdmitResponse(routes=Routes(routes=map(route_message, listed.all)))


def residency(digest: bytes) -> AdmitResponse:
    return AdmitResponse(residency=Residency(digest=digest))


def not_owner_of_request(request_id: str, identity: Identity | None) -> AdmitResponse:
    return AdmitResponse(not_owner=NotOwner(request_id=request_id, identity=identity))


def not_owner_of_reservation(reservation_id: str) -> AdmitResponse:
    return AdmitResponse(not_owner=NotOwner(reservation_id=reservation_id))


def end(reason: str) -> AdmitResponse:
    return AdmitResponse(end=End(reason=reason))
