"""Answers of auth as frames."""

from penstock.auth.reservation import Reservation
from penstock.chassis.errors import PenstockError
from penstock.mesh.v1.admission_pb2 import AdmitResponse, Admitted, Identified, Identity, Refused, Settled
from penstock.v1.stream_pb2 import End


def identified(request_id: str, identity: Identity) -> AdmitResponse:
    return AdmitResponse(identified=Identified(request_id=request_id, identity=identity))


def admitted(request_id: str, reservation: Reservation, identity: Identity, grace_tokens: int) -> AdmitResponse:
    answer = Admitted(
        request_id=request_id,
        reservation_id=reservation.reservation_id,
        identity=identity,
        grace_tokens=grace_tokens,
    )
    answer.expire_time.FromNanoseconds(int(reservation.expires_at * 1_000_000) * 1_000)
    return AdmitResponse(admitted=answer)


def refused(request_id: str, error: PenstockError) -> AdmitResponse:
    return AdmitResponse(refused=Refused(request_id=request_id, failure=error.failure()))


def settled(reservation_id: str) -> AdmitResponse:
    return AdmitResponse(settled=Settled(reservation_id=reservation_id))


def end(reason: str) -> AdmitResponse:
    return AdmitResponse(end=End(reason=reason))
