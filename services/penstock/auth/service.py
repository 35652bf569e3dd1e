"""AdmissionService: turns frames of edges into calls of the authorizer. A promise to an edge is persisted first."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, TypeAlias
from uuid import uuid4

import structlog

from penstock.auth import frames
from penstock.auth.authorizer import Authorizer
from penstock.auth.edge_sessions import EdgeSessions
from penstock.auth.identity.keys import Key
from penstock.auth.quota.reservation import Charge, Reservation
from penstock.auth.store.store import Barrier, Charged, Reserved, Store
from penstock.auth.telemetry import ReserveSpan
from penstock.chassis.errors import PenstockError, Unavailable
from penstock.chassis.streams.link import Peer, accept_stream
from penstock.mesh.v1.admission_pb2 import AdmitRequest, AdmitResponse, Identify, Identity, Reserve, Settle
from penstock.mesh.v1.admission_pb2_grpc import AdmissionServiceServicer
from penstock.v1.stream_pb2 import Hello

log = structlog.get_logger()

SWEEP_INTERVAL_S = 0.5  # s; an expired reservation is detected within this time

EdgePeer: TypeAlias = Peer[AdmitResponse, AdmitRequest]


class StoreUnavailable(Unavailable):
    """The reservation could not be written to the store, so it was cancelled."""

    default_reason = "STORE_UNAVAILABLE"


class AdmissionService(AdmissionServiceServicer):
    """The streams of all edges."""

    def __init__(
        self,
        authorizer: Authorizer,
        edge_sessions: EdgeSessions,
        store: Store,
        hello: Hello,
        clock: Callable[[], float],
    ) -> None:
        self._authorizer = authorizer
        self._edge_sessions = edge_sessions
        self._store = store
        self._hello = hello
        self._clock = clock
        self._peers: set[EdgePeer] = set()
        store.notify_availability(self._on_store_availability)

    @property
    def figures(self) -> dict[str, float]:
        reservations = self._authorizer.reservations
        return {
            "reservations": reservations.reservation_count,
            "reserved_tokens": reservations.reserved_tokens,
            "concurrent_requests": reservations.concurrent_requests,
            "tenants": len(reservations),
            "keys": len(self._authorizer.keys),
            "edges": len(self._edge_sessions),
            **self._store.figures,
        }

    async def Admit(  # type: ignore[override]  # reads and writes on its context, and yields nothing
        self, request_iterator: AsyncIterator[AdmitRequest], context: Any
    ) -> None:
        async with accept_stream(context, AdmitResponse, self._hello, tiers=("edge",)) as peer:
            edge_id = peer.hello.instance_id
            self._edge_sessions.on_connected(edge_id)
            self._peers.add(peer)
            if not self._store.is_available:
                peer.send(frames.store_state(is_unavailable=True))
            try:
                async for frame in peer:
                    self._on_frame(peer, edge_id, frame)
            finally:
                self._peers.remove(peer)
                self._edge_sessions.on_disconnected(edge_id, self._clock())

    async def sweep(self) -> None:
        """Settle expired reservations and those of expired edge sessions, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            now = self._clock()
            for charge in self._authorizer.reservations.expire(now):
                log.warning("reservation_expired", **_names(charge.reservation))
                self._persist(charge)
            for edge_id in self._edge_sessions.pop_expired(now):
                self._expire_edge(edge_id, now)

    async def drain(self) -> None:
        """Send `end` to every edge after all pending changes are persisted."""
        await self._store.flush()
        for peer in self._peers:
            peer.send(frames.end("draining"))

    def _on_store_availability(self, is_available: bool) -> None:
        """Tell edges before the changes of a failed commit are rejected, so that they decide by their fallback."""
        for peer in self._peers:
            peer.send(frames.store_state(is_unavailable=not is_available))

    def _on_frame(self, peer: EdgePeer, edge_id: str, frame: AdmitRequest) -> None:
        match frame.WhichOneof("frame"):
            case "reserve":
                self._reserve(peer, edge_id, frame.reserve)
            case "settle":
                self._settle(peer, frame.settle)
            case "identify":
                self._identify(peer, frame.identify)

    def _identify(self, peer: EdgePeer, frame: Identify) -> None:
        try:
            identity = self._authorizer.identify(frame.credential, self._clock())
        except PenstockError as error:
            peer.send(frames.rejected(frame.request_id, error))
        else:
            peer.send(frames.identified(frame.request_id, identity))

    def _reserve(self, peer: EdgePeer, edge_id: str, frame: Reserve) -> None:
        span, now = ReserveSpan.start(frame), self._clock()
        try:
            identity, reservation, is_new = self._authorizer.reserve(frame, edge_id, _reservation_id(now), now)
        except PenstockError as error:
            self._reject(peer, frame.request_id, error, span, self._authorizer.caller(frame))
            return
        balance = self._authorizer.reservations.quota_of(reservation).balance
        answer = partial(
            self._on_reservation_persisted,
            peer,
            frame,
            identity=identity,
            reservation=reservation,
            is_new=is_new,
            span=span,
        )
        self._store.write(Reserved(reservation, balance) if is_new else Barrier(), answer)

    def _on_reservation_persisted(
        self,
        peer: EdgePeer,
        frame: Reserve,
        error: Exception | None,
        *,
        identity: Identity,
        reservation: Reservation,
        is_new: bool,
        span: ReserveSpan,
    ) -> None:
        if error and is_new:
            self._authorizer.reservations.cancel(reservation)
        elif error and self._authorizer.reservations.is_live(reservation):
            span.end(reason=StoreUnavailable.default_reason)
            return  # a repeated request, whose reservation is in the store; the edge repeats it again
        if not self._authorizer.reservations.is_live(reservation):
            text = "the store of auth cannot be written now; nothing was reserved"
            self._reject(peer, frame.request_id, StoreUnavailable(text, retry_after=1.0), span, identity)
            return
        if is_new and frame.HasField("fallback_admission"):
            log.info("deferred_reservation_recorded", **_names(reservation), edge=reservation.request.edge_id)
        span.end(tenant_id=identity.tenant_id)
        granted = self._authorizer.fallback_grant(identity.tenant_id, len(self._edge_sessions), self._clock())
        peer.send(frames.admitted(frame.request_id, reservation, identity, granted))

    def _reject(
        self,
        peer: EdgePeer,
        request_id: str,
        error: PenstockError,
        span: ReserveSpan,
        caller: Key | Identity | None,
    ) -> None:
        names = {"tenant": caller.tenant_id, "key_id": caller.key_id} if caller else {}
        span.end(tenant_id=names.get("tenant", ""), reason=error.reason)
        log.debug(
            "reservation_rejected", request_id=request_id, **names, reason=error.reason, retry_after=error.retry_after
        )
        peer.send(frames.rejected(request_id, error, caller))

    def _settle(self, peer: EdgePeer, frame: Settle) -> None:
        charge = self._authorizer.reservations.settle(
            frame.reservation_id, frame.prompt_tokens, frame.output_tokens, frame.outcome, self._clock()
        )
        if charge and (
            frame.prompt_tokens > charge.reservation.request.prompt_tokens or frame.output_tokens > charge.made_tokens
        ):
            log.warning("settled_over_reservation", **_names(charge.reservation))
        answer = partial(self._on_settlement_persisted, peer, frame.reservation_id)
        if charge:
            self._persist(charge, answer)
        else:  # settled before; that change may not be persisted yet
            self._store.write(Barrier(), answer)

    def _on_settlement_persisted(self, peer: EdgePeer, reservation_id: str, error: Exception | None) -> None:
        if error is None:
            peer.send(frames.settled(reservation_id))

    def _expire_edge(self, edge_id: str, now: float) -> None:
        charges = self._authorizer.reservations.expire_edge(edge_id, now)
        log.warning("edge_lost", edge=edge_id, reservations=len(charges))
        for charge in charges:
            self._persist(charge)

    def _persist(self, charge: Charge, on_persisted: Callable[[Exception | None], None] = lambda _: None) -> None:
        balance = self._authorizer.reservations.quota_of(charge.reservation).balance
        self._store.write(Charged(charge, balance), on_persisted)


def _reservation_id(now: float) -> str:
    """Return a unique id that sorts by time, so that the store appends rows to the end of its tables."""
    return f"{int(now * 1_000):012x}{uuid4().hex[12:]}"


def _names(reservation: Reservation) -> dict[str, str]:
    """Return the fields by which log lines name a reservation and its caller."""
    request = reservation.request
    return {
        "reservation_id": reservation.reservation_id,
        "request_id": request.request_id,
        "tenant": request.tenant_id,
        "key_id": request.key_id,
    }
