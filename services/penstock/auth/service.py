"""AdmissionService: frames of edges to calls on the desk and back. What an edge is promised is in the store first."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, TypeAlias
from uuid import uuid4

import structlog

from penstock.auth import frames
from penstock.auth.desk import Desk
from penstock.auth.edges import Edges
from penstock.auth.keys import Key
from penstock.auth.reservation import Charge, Reservation
from penstock.auth.spans import ReserveSpan
from penstock.auth.store import Barrier, Charged, Reserved, Store
from penstock.chassis.errors import PenstockError, Unavailable
from penstock.chassis.streams import Peer, accepted
from penstock.mesh.v1.admission_pb2 import AdmitRequest, AdmitResponse, Identify, Identity, Reserve, Settle
from penstock.mesh.v1.admission_pb2_grpc import AdmissionServiceServicer
from penstock.v1.stream_pb2 import Hello

log = structlog.get_logger()

SWEEP = 0.5  # s; how late a lapse may be noticed

EdgePeer: TypeAlias = Peer[AdmitResponse, AdmitRequest]


class StoreUnavailable(Unavailable):
    """The store did not keep a reservation, so there is none."""

    default_reason = "STORE_UNAVAILABLE"


class AdmissionService(AdmissionServiceServicer):
    def __init__(self, desk: Desk, edges: Edges, store: Store, hello: Hello, clock: Callable[[], float]) -> None:
        self._desk = desk
        self._edges = edges
        self._store = store
        self._hello = hello
        self._clock = clock
        self._peers: set[EdgePeer] = set()

    @property
    def figures(self) -> dict[str, float]:
        accounts = self._desk.accounts
        return {
            "reservations": accounts.reservations,
            "reserved_tokens": accounts.reserved_tokens,
            "concurrent_requests": accounts.concurrent_requests,
            "tenants": len(accounts),
            "keys": len(self._desk.keys),
            "edges": len(self._edges),
            "store_pending": self._store.pending,
        }

    async def Admit(  # type: ignore[override]  # reads and writes on its context, and yields nothing
        self, request_iterator: AsyncIterator[AdmitRequest], context: Any
    ) -> None:
        async with accepted(context, AdmitResponse, self._hello) as peer:
            edge_id = peer.hello.instance_id
            self._edges.came(edge_id)
            self._peers.add(peer)
            try:
                async for frame in peer:
                    self._answer(peer, edge_id, frame)
            finally:
                self._peers.remove(peer)
                self._edges.left(edge_id, self._clock())

    async def sweep(self) -> None:
        """Settle what lapses and what edges that stay away hold, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP)
            now = self._clock()
            for charge in self._desk.accounts.expire(now):
                log.warning("reservation_lapsed", **_names(charge.reservation))
                self._keep(charge)
            for edge_id in self._edges.lapsed(now):
                self._lose(edge_id, now)

    async def send_away(self) -> None:
        """Tell every edge, once all that it may have been promised is kept, to ask another process."""
        await self._store.flush()
        for peer in self._peers:
            peer.send(frames.end("draining"))

    def _answer(self, peer: EdgePeer, edge_id: str, frame: AdmitRequest) -> None:
        match frame.WhichOneof("frame"):
            case "reserve":
                self._reserve(peer, edge_id, frame.reserve)
            case "settle":
                self._settle(peer, frame.settle)
            case "identify":
                self._identify(peer, frame.identify)

    def _identify(self, peer: EdgePeer, ask: Identify) -> None:
        try:
            identity = self._desk.identify(ask.credential, self._clock())
        except PenstockError as error:
            peer.send(frames.refused(ask.request_id, error))
        else:
            peer.send(frames.identified(ask.request_id, identity))

    def _reserve(self, peer: EdgePeer, edge_id: str, ask: Reserve) -> None:
        span = ReserveSpan.of(ask)
        try:
            identity, reservation, is_new = self._desk.reserve(ask, edge_id, uuid4().hex, self._clock())
        except PenstockError as error:
            self._refuse(peer, ask.request_id, error, span, self._desk.caller(ask))
            return
        if is_new and ask.HasField("vouch"):
            log.info("booked_after_grace", **_names(reservation), edge=edge_id)
        balance = self._desk.accounts.of(reservation).balance
        change = Reserved(reservation, balance) if is_new else Barrier()
        self._store.write(
            change, partial(self._reserved, peer, ask.request_id, identity=identity, reservation=reservation, span=span)
        )

    def _reserved(
        self,
        peer: EdgePeer,
        request_id: str,
        error: Exception | None,
        *,
        identity: Identity,
        reservation: Reservation,
        span: ReserveSpan,
    ) -> None:
        if error:
            self._desk.accounts.undo(reservation)
        if not self._desk.accounts.is_live(reservation):
            text = "the books of auth cannot be written now; nothing was reserved"
            self._refuse(peer, request_id, StoreUnavailable(text, retry_after=1.0), span, identity)
            return
        span.end(tenant_id=identity.tenant_id)
        granted = self._desk.grant(identity.tenant_id, len(self._edges), self._clock())
        peer.send(frames.admitted(request_id, reservation, identity, granted))

    def _refuse(
        self,
        peer: EdgePeer,
        request_id: str,
        error: PenstockError,
        span: ReserveSpan,
        caller: Key | Identity | None,
    ) -> None:
        names = {"tenant": caller.tenant_id, "key_id": caller.key_id} if caller else {}
        span.end(tenant_id=names.get("tenant", ""), reason=error.reason)
        log.debug("reserve_refused", request_id=request_id, **names, reason=error.reason, retry_after=error.retry_after)
        peer.send(frames.refused(request_id, error, caller))

    def _settle(self, peer: EdgePeer, ask: Settle) -> None:
        charge = self._desk.accounts.settle(
            ask.reservation_id, ask.prompt_tokens, ask.output_tokens, ask.outcome, self._clock()
        )
        if charge and (
            ask.prompt_tokens > charge.reservation.ask.prompt_tokens or ask.output_tokens > charge.made_tokens
        ):
            log.warning("settled_over_reservation", **_names(charge.reservation))
        answer = partial(self._settled, peer, ask.reservation_id)
        if charge:
            self._keep(charge, answer)
        else:  # ended before; what ended it may still be on its way to the store
            self._store.write(Barrier(), answer)

    def _settled(self, peer: EdgePeer, reservation_id: str, error: Exception | None) -> None:
        if error is None:
            peer.send(frames.settled(reservation_id))

    def _lose(self, edge_id: str, now: float) -> None:
        charges = self._desk.accounts.lose_edge(edge_id, now)
        log.warning("edge_lost", edge=edge_id, reservations=len(charges))
        for charge in charges:
            self._keep(charge)

    def _keep(self, charge: Charge, then: Callable[[Exception | None], None] = lambda _: None) -> None:
        balance = self._desk.accounts.of(charge.reservation).balance
        self._store.write(Charged(charge, balance), then)


def _names(reservation: Reservation) -> dict[str, str]:
    """Return what a log line calls a reservation and its caller."""
    ask = reservation.ask
    return {
        "reservation_id": reservation.reservation_id,
        "request_id": ask.request_id,
        "tenant": ask.tenant_id,
        "key_id": ask.key_id,
    }
