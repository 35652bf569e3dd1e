"""The edge's session with auth: asks, and the settlements auth has not confirmed yet."""

import asyncio
from collections.abc import Sequence
from uuid import uuid4

from penstock.chassis.channels import PeerSet, channel
from penstock.chassis.errors import Unavailable, error_from_failure
from penstock.chassis.lifecycle import background
from penstock.chassis.streams.link import Link
from penstock.edge.auth_fallback.fallback import AuthFallback
from penstock.edge.auth_fallback.pending import AuthFallbackLimits, PendingReservations
from penstock.edge.lifecycle.context import EffectRunner, RequestContext
from penstock.edge.lifecycle.effects import Settle
from penstock.edge.lifecycle.state import RequestState
from penstock.edge.lifecycle.table import ActiveRequests
from penstock.edge.upstreams import frames
from penstock.edge.upstreams.coalescer import FrameCoalescer
from penstock.mesh.v1.admission_pb2 import (
    AdmitRequest,
    AdmitResponse,
    Admitted,
    Credential,
    Identified,
    Identify,
    Identity,
    Rejected,
)
from penstock.mesh.v1.admission_pb2_grpc import AdmissionServiceStub
from penstock.v1.inference_pb2 import Priority
from penstock.v1.stream_pb2 import Hello

RESEND_INTERVAL_S = 5.0  # s

AuthStream = Link[AdmitRequest, AdmitResponse]


class AuthClient:
    """One stream to every auth replica; all is said to one of them until it is lost, then again to the next.

    Saying it again is harmless: reserve and settle are idempotent on their ids. While all are away, `Grace` decides.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        hello: Hello,
        requests: ActiveRequests,
        runner: EffectRunner,
        fallback_limits: AuthFallbackLimits,
    ) -> None:
        self._hello = hello
        self._requests = requests
        self._runner = runner
        self._streams: dict[str, AuthStream] = {}
        self._active_address = ""
        self._unsettled: dict[str, AdmitRequest] = {}
        self._coalescer = FrameCoalescer(self._send, asyncio.get_running_loop())  # settlements of those that left
        self._pending_reservations = PendingReservations(max_entries=requests.max_active_requests)
        self._pending_identifies: dict[str, tuple[AdmitRequest, asyncio.Future[Identity]]] = {}
        self._all_settled = asyncio.Event()
        self._all_settled.set()
        self._fallback = AuthFallback(
            fallback_limits, runner, send=self._flush_and_send, on_unreachable=self._decide_waiting
        )
        self._peers = PeerSet(addresses, self._open)

    @property
    def is_up(self) -> bool:
        return bool(self._active_address) and self._streams[self._active_address].is_up

    @property
    def links_up(self) -> int:
        return sum(link.is_up for link in self._streams.values())

    @property
    def is_unreachable(self) -> bool:
        """Whether the edge decides by itself at the moment."""
        return self._fallback.is_unreachable

    @property
    def unsettled(self) -> int:
        return len(self._unsettled) + self._fallback.deferred

    @property
    def fallback_figures(self) -> dict[str, float]:
        return {
            "auth_unreachable": self.is_unreachable,
            "fallback_admitted": self._fallback.admitted,
            "fallback_rejected": self._fallback.rejected,
            "deferred_reservations": self._fallback.deferred,
            "cached_identities": self._fallback.cached_identities,
        }

    async def run(self) -> None:
        try:
            async with background(self._resend_unconfirmed()):
                await self._peers.run()
        finally:
            self._coalescer.close()
            self._fallback.close()

    async def wait_settled(self) -> None:
        self._coalescer.flush()
        if self._fallback.deferred:
            self._all_settled.clear()
        await self._all_settled.wait()

    def find_identity(self, credential: Credential, priority: "Priority.ValueType") -> Identity | None:
        """Return who the caller is, of the class it would be granted; None when auth has not let it in of late."""
        return self._fallback.find_identity(credential, priority)

    def reserve(self, context: RequestContext) -> None:
        """Ask, or decide; while nobody knows yet whether auth is away the ask is made again when it is back."""
        if self.is_unreachable:
            self._fallback.decide(context)
            return
        self._fallback.on_request_sent(context.ticket_id)
        frame = frames.reserve(context)
        if self._flush_and_send(frame):
            self._pending_reservations.add(context.ticket_id, frame)

    def settle(self, ticket_id: str, reservation_id: str, settlement: Settle) -> None:
        """End a reservation; one that auth has not named yet ends when it has."""
        if not reservation_id:
            self._fallback.settle_deferred(ticket_id, settlement)
            return
        self._all_settled.clear()
        frame = self._unsettled[reservation_id] = frames.settle(reservation_id, settlement)
        if settlement.outcome == "cancelled":
            self._coalescer.put(frame)
        else:
            self._flush_and_send(frame)

    async def identify(self, credential: Credential, timeout: float) -> Identity:
        """Return who the caller is; raises what auth refuses it with, or Unavailable when it does not answer."""
        if self.is_unreachable:
            return self._fallback.identify(credential)
        request_id = uuid4().hex
        frame = AdmitRequest(identify=Identify(request_id=request_id, credential=credential))
        answer: asyncio.Future[Identity] = asyncio.get_running_loop().create_future()
        self._pending_identifies[request_id] = frame, answer
        self._fallback.on_request_sent(request_id)
        self._flush_and_send(frame)
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise Unavailable("auth does not answer; retry in 1 s", reason="AUTH_LOST", retry_after=1.0) from None
        finally:
            del self._pending_identifies[request_id]

    async def _resend_unconfirmed(self) -> None:
        """Say again what auth heard and did not confirm, as when its store could not be written."""
        while True:
            before, unbooked = set(self._unsettled), self._fallback.deferred_ticket_ids
            await asyncio.sleep(RESEND_INTERVAL_S)
            self._fallback.resend(unbooked)
            for reservation_id in before & self._unsettled.keys():
                self._flush_and_send(self._unsettled[reservation_id])
            self._recover_orphans()

    def _recover_orphans(self) -> None:
        """Have auth name what it may hold for flights that are over, so that it is given back."""
        booked = self._fallback.deferred_ticket_ids
        for frame in self._pending_reservations.orphaned(
            lambda each: each in booked or self._requests.get(each) is not None
        ):
            self._flush_and_send(frame)

    def _flush_and_send(self, frame: AdmitRequest) -> bool:
        """Say it after what is held back, which may make room for it; False where no replica is there to hear it."""
        self._coalescer.flush()
        return self._send(frame)

    def _send(self, frame: AdmitRequest) -> bool:
        return bool(self._active_address) and self._streams[self._active_address].send(frame)

    async def _open(self, address: str) -> None:
        async with channel(address) as to_auth:
            link = self._streams[address] = AuthStream(
                f"auth {address}",
                lambda: AdmissionServiceStub(to_auth).Admit(),
                AdmitRequest,
                self._hello,
                on_frame=lambda frame: self._on_frame(address, frame),
                on_up=lambda _: self._on_up(address),
                on_down=lambda _: self._on_down(address),
                # A peer that comes back hears of every flight at once, of as many that auth has not booked, and of as
                # many that are over and not answered; a stalled one of two frames each at most.
                capacity=6 * self._requests.max_active_requests,
            )
            try:
                await link.run()
            finally:
                del self._streams[address]

    def _on_up(self, address: str) -> None:
        if not self._active_address:
            self._switch_to(address)
        self._runner.on_upstream_connected()

    def _on_down(self, address: str, *, on_purpose: bool = False) -> None:
        if self._active_address == address:
            others = sorted(each for each, link in self._streams.items() if link.is_up and each != address)
            self._switch_to(others[0] if others else "", on_purpose=on_purpose)

    def _switch_to(self, address: str, *, on_purpose: bool = False) -> None:
        """Say all that is open to another replica: whether the last one heard it, nobody knows."""
        self._active_address = address
        self._coalescer.discard()  # `_unsettled` has it
        if not address:
            self._fallback.on_disconnected(on_purpose=on_purpose)
            return
        self._fallback.on_connected()
        for frame in self._unsettled.values():
            self._flush_and_send(frame)
        for request_id, (frame, _) in self._pending_identifies.items():
            self._fallback.on_request_sent(request_id)
            self._flush_and_send(frame)
        self._recover_orphans()
        for context in self._requests.in_state(RequestState.RESERVING):
            self._runner.apply(context, context.request.on_auth_connected())

    def _on_frame(self, address: str, frame: AdmitResponse) -> None:
        match frame.WhichOneof("frame"):
            case "admitted":
                self._fallback.on_response(frame.admitted.request_id)
                self._pending_reservations.remove(frame.admitted.request_id)
                self._on_admitted(frame.admitted)
            case "rejected":
                self._fallback.on_response(frame.rejected.request_id)
                self._pending_reservations.remove(frame.rejected.request_id)
                self._on_rejected(frame.rejected)
            case "settled":
                self._fallback.on_response()
                self._on_settled(frame.settled.reservation_id)
            case "identified":
                self._fallback.on_response(frame.identified.request_id)
                self._on_identified(frame.identified)
            case "end":
                self._on_down(address, on_purpose=True)

    def _on_identified(self, identified: Identified) -> None:
        if identified.request_id in self._pending_identifies:
            _, answer = self._pending_identifies[identified.request_id]
            if not answer.done():
                answer.set_result(identified.identity)

    def _on_admitted(self, admitted: Admitted) -> None:
        context, reservation_id = self._requests.get(admitted.request_id), admitted.reservation_id
        entry = self._fallback.pop_deferred(admitted.request_id)
        self._fallback.cache_identity(admitted, context)
        if entry and entry.settlement:
            self.settle(admitted.request_id, reservation_id, entry.settlement)
            return
        if context is None:  # nobody waits for it any more
            if reservation_id not in self._unsettled:
                self.settle(admitted.request_id, reservation_id, Settle(0, 0, "cancelled"))
            return
        if entry:
            context.request.reservation_id = reservation_id
            return
        request = context.request
        was_asked = request.state is RequestState.RESERVING
        now = self._runner.now()
        effects = request.on_admitted(admitted.identity, admitted.reservation_id, now)
        if was_asked:
            context.telemetry.on_admitted(now)
        self._runner.apply(context, effects)

    def _on_rejected(self, rejected: Rejected) -> None:
        if self._fallback.on_rejected(rejected):
            self._check_settled()
            return
        error = error_from_failure(rejected.failure)
        if rejected.request_id in self._pending_identifies:
            _, answer = self._pending_identifies[rejected.request_id]
            if not answer.done():
                answer.set_exception(error)
        elif context := self._requests.get(rejected.request_id):
            self._fallback.invalidate_identity(rejected, context.credential)
            if rejected.key_id and context.request.state is RequestState.RESERVING:
                context.request.identity = Identity(tenant_id=rejected.tenant_id, key_id=rejected.key_id)
            self._runner.apply(context, context.request.on_auth_rejected(error, self._runner.now()))

    def _on_settled(self, reservation_id: str) -> None:
        self._unsettled.pop(reservation_id, None)
        self._check_settled()

    def _check_settled(self) -> None:
        if not self.unsettled:
            self._all_settled.set()

    def _decide_waiting(self) -> None:
        """Auth has become away for those who wait for it."""
        for context in self._requests.in_state(RequestState.RESERVING):
            self._fallback.decide(context, is_pending=True)
        for frame, answer in list(self._pending_identifies.values()):
            if answer.done():
                continue
            try:
                answer.set_result(self._fallback.identify(frame.identify.credential))
            except Unavailable as error:
                answer.set_exception(error)
