"""AdmissionService: turns frames of edges into calls of the authorizer. A promise to an edge is persisted first."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias
from uuid import uuid4

import structlog

from penstock.auth import frames, metrics
from penstock.auth.authorizer import Authorizer
from penstock.auth.edge_sessions import EdgeSessions
from penstock.auth.edge_streams import EdgePeer, EdgeStreams
from penstock.auth.identity.authenticator import SigningKeyPending
from penstock.auth.identity.identity_keys import IdentityKeyRing
from penstock.auth.identity.keys import Key
from penstock.auth.models.routes import Route, RouteList
from penstock.auth.partitions.owned import NotOwner
from penstock.auth.quota.grant import GrantInvalid
from penstock.auth.quota.reservation import Charge, Reservation
from penstock.auth.store.store import (
    Barrier,
    CatalogChanged,
    Charged,
    Giving,
    Lost,
    PartitionsLost,
    Release,
    Reserved,
    Store,
    StoreEvent,
    Taken,
)
from penstock.auth.telemetry import ReserveSpan
from penstock.chassis.durations import nanos_left
from penstock.chassis.errors import PenstockError, Unavailable
from penstock.chassis.streams.link import accept_stream
from penstock.chassis.streams.ticks import delay_to_tick
from penstock.mesh.partitions import partition_of
from penstock.mesh.v1.admission_pb2 import AdmitRequest, AdmitResponse, Admitted, Identify, Identity, Reserve, Settle
from penstock.mesh.v1.admission_pb2_grpc import AdmissionServiceServicer
from penstock.v1.stream_pb2 import Hello

log = structlog.get_logger()

HAND_OVER_TIMEOUT_S = 3.0  # s; after it, the others take over as from a process that died
CONFIRMATION_DELAY_S = 0.1  # s; the edge waits for confirmations of settlements only when it drains
SWEEP_INTERVAL_S = 0.5  # s; an expired reservation is detected within this time

# Calls its argument once keys of an issuer that are being loaded are there. Returns False if too many frames wait.
WaitForKeys: TypeAlias = Callable[[Callable[[], None]], bool]


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
        *,
        identity_keys: IdentityKeyRing | None = None,  # None: no proxy asks this process
        wait_for_keys: WaitForKeys | None = None,  # None: no tokens are accepted
        routes: RouteList | None = None,  # None: edges receive none
    ) -> None:
        self._authorizer = authorizer
        self._wait_for_keys = wait_for_keys
        self._edge_sessions = edge_sessions
        self._store = store
        self._hello = hello
        self._clock = clock
        self._grant_time_left_nanos = nanos_left(authorizer.grants.ttl, 0.0)
        self._routes = routes
        self._streams = EdgeStreams(
            edge_sessions,
            authorizer.served,
            identity_keys,
            clock,
            store.count_edges,
            residency=authorizer.residency,
            routes=routes,
        )
        self._invalid_grants = 0
        self._budget_warnings = 0
        store.notify_availability(self._on_store_availability)
        store.notify_events(self._on_store_event)

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
            "invalid_grants": self._invalid_grants,
            "shadow_refusals": reservations.shadow_refusals,
            "budget_warnings": self._budget_warnings,
            "routes": len(self._routes or ()),
            "models_without_price": reservations.prices.unpriced_models,
            "partitions": len(self._authorizer.served),
            "failed_authentications": self._authorizer.authenticator.failures,
            "limited_authentications": self._authorizer.authenticator.limited,
            **self._store.figures,
        }

    async def Admit(  # type: ignore[override]  # reads and writes on its context, and yields nothing
        self, request_iterator: AsyncIterator[AdmitRequest], context: Any
    ) -> None:
        async with accept_stream(context, AdmitResponse, self._hello, tiers=("edge",)) as peer:
            edge_id = peer.hello.instance_id
            self._streams.add(peer, is_store_available=self._store.is_available)
            try:
                async for frame in peer:
                    self._on_frame(peer, edge_id, frame)
            finally:
                self._streams.remove(peer)

    async def sweep(self) -> None:
        """Settle expired reservations and those of expired edge sessions, until cancelled."""
        while True:
            await asyncio.sleep(delay_to_tick(SWEEP_INTERVAL_S))
            now = self._clock()
            for charge in self._authorizer.reservations.expire(now):
                metrics.record_expired(1)
                log.warning("reservation_expired", **_names(charge.reservation))
                self._persist(charge)
            for edge_id in self._edge_sessions.pop_expired(now):
                self._expire_edge(edge_id, now)
            self._authorizer.grant_uses.forget(now)
            for model in self._authorizer.reservations.prices.pop_unpriced():
                log.warning("model_without_price", model=model, because="its requests cost nothing of budgets in money")
            self._streams.rotate_identity_keys(now)

    async def drain(self) -> None:
        """Give all partitions to other replicas; send `end` to every edge after all pending changes are persisted."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_TIMEOUT_S):
                await self._store.hand_over()
        await self._store.flush()
        self._streams.end("draining")

    def _on_store_availability(self, is_available: bool) -> None:
        """Tell edges before the changes of a failed commit are rejected, so that they decide by their fallback."""
        self._streams.send_store_state(is_available=is_available)

    def _on_store_event(self, event: StoreEvent) -> None:
        now = self._clock()
        match event:
            case Taken(epochs, state):
                metrics.record_partition_change("taken", len(epochs))
                self._authorizer.take(epochs, state, now)
                self._replace_routes(state.routes)
                for reservation in state.reservations:
                    self._edge_sessions.expect(reservation.request.edge_id, now)
            case Giving(partitions):
                metrics.record_partition_change("given", len(partitions))
                self._authorizer.give(partitions, now)
                log.info("partitions_given", partitions=len(partitions))
            case Lost(partitions):
                metrics.record_partition_change("lost", len(partitions))
                self._authorizer.give(partitions, now)
                log.warning("partitions_lost", partitions=len(partitions))
            case CatalogChanged(tenants, keys, prices, routes):
                self._authorizer.put_catalog(tenants, keys, prices, now)
                self._replace_routes(routes)
                return
            case _:
                return
        self._streams.send_owned_partitions()
        if isinstance(event, Giving | Lost):
            self._store.write(Release(event.partitions), lambda _: None)

    def _replace_routes(self, routes: Iterable[Route]) -> None:
        if self._routes is not None:
            self._routes.replace(routes)

    def _on_frame(self, peer: EdgePeer, edge_id: str, frame: AdmitRequest) -> None:
        match frame.WhichOneof("frame"):
            case "reserve":
                self._reserve(peer, edge_id, frame.reserve)
            case "settle":
                self._settle(peer, frame.settle)
            case "identify":
                self._identify(peer, edge_id, frame.identify)

    def _identify(self, peer: EdgePeer, edge_id: str, frame: Identify) -> None:
        now, delegation = self._clock(), b""
        try:
            if frame.delegates:
                identity, delegation = self._authorizer.delegate(frame.credential, now, edge_id=edge_id)
            else:
                identity = self._authorizer.identify(frame.credential, now, edge_id=edge_id)
        except PenstockError as error:
            if not self._is_repeated(error, partial(self._identify, peer, edge_id, frame)):
                peer.send(frames.rejected(frame.request_id, error))
        else:
            peer.send(frames.identified(frame.request_id, identity, delegation))

    def _reserve(self, peer: EdgePeer, edge_id: str, frame: Reserve) -> None:
        span, now, began = ReserveSpan.start(frame), self._clock(), time.perf_counter()
        try:
            identity, reservation, is_new = self._authorizer.reserve(frame, edge_id, _reservation_id(now), now)
        except NotOwner as error:
            span.end(reason=error.reason)
            peer.send(frames.not_owner_of_request(frame.request_id, error.identity))
            return
        except PenstockError as error:
            if self._is_repeated(error, partial(self._reserve, peer, edge_id, frame)):
                span.end(reason=error.reason)
                return
            self._count_rejection(edge_id, frame, error)
            self._reject(peer, frame.request_id, error, span, self._authorizer.caller(frame))
            return
        quota = self._authorizer.reservations.quota_of(reservation)
        if is_new and (shadow_refusals := reservation.metering.shadow_refusals):
            metrics.record_shadow_refusals(shadow_refusals)
        answer = partial(
            self._on_reservation_persisted,
            peer,
            frame,
            identity=identity,
            reservation=reservation,
            is_new=is_new,
            span=span,
            began=began,
        )
        grant_use = self._authorizer.grant_uses.find(reservation.reservation_id)
        reserved = Reserved(reservation, quota.balance, grant_use, quota.uses_of(reservation))
        self._store.write(reserved if is_new else Barrier(partition_of(identity.tenant_id)), answer)

    def _is_repeated(self, error: PenstockError, repeat: Callable[[], None]) -> bool:
        """Return whether the frame is handled again once the keys that its token needs are loaded."""
        return isinstance(error, SigningKeyPending) and self._wait_for_keys is not None and self._wait_for_keys(repeat)

    def _count_rejection(self, edge_id: str, frame: Reserve, error: PenstockError) -> None:
        if isinstance(error, GrantInvalid):
            self._invalid_grants += 1
            names = {"edge": edge_id, "key_id": frame.fallback_admission.key_id, "ticket_id": frame.request_id}
            log.warning("grant_invalid", **names, because=error.message)

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
        began: float,  # s of the performance counter
    ) -> None:
        if isinstance(error, PartitionsLost) or not self._authorizer.served.has_tenant(identity.tenant_id):
            span.end(reason=NotOwner.default_reason)  # if it is written, the owner finds it
            if error and is_new:
                self._authorizer.grant_uses.cancel(reservation.reservation_id)
            peer.send(frames.not_owner_of_request(frame.request_id, identity))
            return
        if error and is_new:
            self._authorizer.cancel(reservation)
        elif error and self._authorizer.reservations.is_live(reservation):
            span.end(reason=StoreUnavailable.default_reason)
            return  # a repeated request, whose reservation is in the store; the edge repeats it again
        if not self._authorizer.reservations.is_live(reservation):
            text = "the store of auth cannot be written now; nothing was reserved"
            self._reject(peer, frame.request_id, StoreUnavailable(text, retry_after=1.0), span, identity)
            return
        if is_new and frame.HasField("fallback_admission"):
            log.info("deferred_reservation_recorded", **_names(reservation), edge=reservation.request.edge_id)
        span.end(tenant_id=identity.tenant_id, key_id=identity.key_id)
        if is_new:
            metrics.record_admitted(identity.tenant_id, time.perf_counter() - began)
        now = self._clock()
        edges, request = len(self._edge_sessions), reservation.request
        granted = self._authorizer.fallback_grant(identity.tenant_id, edges, now, request)
        answer = frames.admitted(frame.request_id, reservation, identity, granted)
        if granted:
            edge_id = peer.hello.instance_id
            answer.admitted.fallback_grant = self._authorizer.grants.issue(edge_id, identity.key_id, granted, now)
            answer.admitted.fallback_grant_time_left_nanos = self._grant_time_left_nanos
        if not frame.HasField("fallback_admission"):
            self._add_limits(answer.admitted, reservation, now)
        peer.send(answer)

    def _add_limits(self, answer: Admitted, reservation: Reservation, now: float) -> None:
        """Add what the caller learns of its limits."""
        quota = self._authorizer.reservations.quota_of(reservation)
        quota.write_rate_limits(answer.rate_limits, reservation.request, now)
        if reservation.holds and (warning := quota.budget_warning(reservation, now)):
            answer.budget_warning = warning
            self._budget_warnings += 1

    def _reject(
        self,
        peer: EdgePeer,
        request_id: str,
        error: PenstockError,
        span: ReserveSpan,
        caller: Key | Identity | None,
    ) -> None:
        names = {"tenant": caller.tenant_id, "key_id": caller.key_id} if caller else {}
        metrics.record_refused(names.get("tenant", ""), error)
        span.end(tenant_id=names.get("tenant", ""), key_id=names.get("key_id", ""), reason=error.reason)
        log.debug(
            "reservation_rejected", ticket_id=request_id, **names, reason=error.reason, retry_after=error.retry_after
        )
        peer.send(frames.rejected(request_id, error, caller))

    def _settle(self, peer: EdgePeer, frame: Settle) -> None:
        try:
            charge = self._authorizer.settle(frame, self._clock())
        except NotOwner:
            peer.send(frames.not_owner_of_reservation(frame.reservation_id))
            return
        if charge and (
            frame.prompt_tokens > charge.reservation.request.prompt_tokens or frame.output_tokens > charge.made_tokens
        ):
            log.warning("settled_over_reservation", **_names(charge.reservation))
        answer = partial(self._on_settlement_persisted, peer, frame.reservation_id)
        if charge:
            self._persist(charge, answer)
        else:  # settled before; that change may not be persisted yet
            self._store.write(Barrier(frame.partition if frame.HasField("partition") else None), answer)

    def _on_settlement_persisted(self, peer: EdgePeer, reservation_id: str, error: Exception | None) -> None:
        if error is None:
            peer.send(frames.settled(reservation_id), max_delay_s=CONFIRMATION_DELAY_S)
        elif isinstance(error, PartitionsLost):
            peer.send(frames.not_owner_of_reservation(reservation_id))

    def _expire_edge(self, edge_id: str, now: float) -> None:
        charges = self._authorizer.reservations.expire_edge(edge_id, now)
        metrics.record_expired(len(charges))
        log.warning("edge_lost", edge=edge_id, reservations=len(charges))
        for charge in charges:
            self._persist(charge)

    def _persist(self, charge: Charge, on_persisted: Callable[[Exception | None], None] = lambda _: None) -> None:
        quota = self._authorizer.reservations.quota_of(charge.reservation)
        grant_use = self._authorizer.grant_uses.find(charge.reservation.reservation_id)
        self._store.write(Charged(charge, quota.balance, grant_use, quota.uses_of(charge.reservation)), on_persisted)


def _reservation_id(now: float) -> str:
    """Return a unique id that sorts by time, so that the store appends rows to the end of its tables."""
    return f"{int(now * 1_000):012x}{uuid4().hex[12:]}"


def _names(reservation: Reservation) -> dict[str, str]:
    """Return the fields by which log lines name a reservation and its caller."""
    request = reservation.request
    return {
        "reservation_id": reservation.reservation_id,
        "ticket_id": request.request_id,
        "tenant": request.tenant_id,
        "key_id": request.key_id,
    }
