"""Client of auth: reservations, settlements and identification over one stream to each replica."""

import asyncio
from collections.abc import Sequence
from uuid import uuid4

from penstock.chassis.channels import PeerSet
from penstock.chassis.errors import Overloaded, PenstockError, Unavailable, error_from_failure
from penstock.chassis.lifecycle import background
from penstock.chassis.security.channels import PLAINTEXT, Dialer
from penstock.chassis.streams.link import Link
from penstock.edge.auth_fallback.fallback import AuthFallback
from penstock.edge.auth_fallback.pending import AuthFallbackLimits, PendingReservations
from penstock.edge.lifecycle.context import EffectRunner, RequestContext
from penstock.edge.lifecycle.effects import Settle
from penstock.edge.lifecycle.output import GenerationPlan
from penstock.edge.lifecycle.record import RequestState
from penstock.edge.lifecycle.table import ActiveRequests
from penstock.edge.request.identity_headers import IdentityHeaders
from penstock.edge.request.limit_headers import limit_headers
from penstock.edge.upstreams import frames
from penstock.edge.upstreams.settlements import Settlements
from penstock.mesh.v1.admission_pb2 import (
    AdmitRequest,
    AdmitResponse,
    Admitted,
    Credential,
    Identify,
    Identity,
    Rejected,
)
from penstock.mesh.v1.admission_pb2_grpc import AdmissionServiceStub
from penstock.v1.inference_pb2 import Priority
from penstock.v1.stream_pb2 import Hello

RESEND_INTERVAL_S = 5.0

AuthStream = Link[AdmitRequest, AdmitResponse]


class AuthClient:
    """Sends all frames to one auth replica until its stream is lost, then repeats the open ones to another replica.

    Repeating is safe, because `reserve` and `settle` are idempotent on their ids. While no replica is reachable,
    `AuthFallback` decides.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        hello: Hello,
        requests: ActiveRequests,
        runner: EffectRunner,
        fallback_limits: AuthFallbackLimits,
        *,
        dialer: Dialer = PLAINTEXT,
    ) -> None:
        self._dialer = dialer
        self._hello = hello
        self._requests = requests
        self._runner = runner
        self._streams: dict[str, AuthStream] = {}
        self._active_address = ""
        self._without_store: set[str] = set()  # addresses of replicas whose store is unavailable
        self._settlements = Settlements(self._send, asyncio.get_running_loop())
        self._pending_reservations = PendingReservations(max_entries=requests.max_active_requests)
        self._pending_identifies: dict[str, tuple[AdmitRequest, asyncio.Future[Identity]]] = {}
        self._abandoned_tokens: dict[str, int] = {}  # of prompts to charge, by ticket
        self._all_settled = asyncio.Event()
        self._all_settled.set()
        self.fallback = AuthFallback(
            fallback_limits,
            runner,
            frames.reserve_admitted,
            send=self._settlements.flush_and_send,
            on_unreachable=self._decide_waiting,
        )
        self.identity_headers = IdentityHeaders()
        self._peers = PeerSet(addresses, self._open)

    @property
    def is_up(self) -> bool:
        return bool(self._active_address) and self._streams[self._active_address].is_up

    @property
    def links_up(self) -> int:
        return sum(link.is_up for link in self._streams.values())

    @property
    def is_unreachable(self) -> bool:
        """Whether the edge decides instead of auth at present."""
        return self.fallback.is_unreachable

    @property
    def unsettled(self) -> int:
        return len(self._settlements) + self.fallback.deferred

    async def run(self) -> None:
        try:
            async with background(self._resend_unconfirmed()):
                await self._peers.run()
        finally:
            self._settlements.close()
            self.fallback.close()

    async def wait_settled(self) -> None:
        self._settlements.flush()
        if self.fallback.deferred:
            self._all_settled.clear()
        await self._all_settled.wait()

    def find_identity(self, credential: Credential, priority: "Priority.ValueType") -> Identity | None:
        """Return the identity of a recently admitted caller, with the class it would get. None if it is not cached."""
        return self.fallback.find_identity(credential, priority)

    def reserve(self, context: RequestContext) -> None:
        """Reserve tokens for a request, or decide by fallback. A lost `reserve` is repeated on the next stream."""
        if self.is_unreachable:
            self.fallback.decide(context)
            return
        self.fallback.on_request_sent(context.ticket_id)
        frame = frames.reserve(context)
        if self._settlements.flush_and_send(frame):
            self._pending_reservations.add(context.ticket_id, frame)

    def charge_abandoned(self, context: RequestContext, plan: GenerationPlan) -> None:
        """Charge the prompt of a request that ended while it was tokenized. Not during an outage of auth."""
        if self.is_unreachable or len(self._abandoned_tokens) >= self._requests.max_active_requests:
            return
        frame = frames.reserve_abandoned(context, plan)
        self._abandoned_tokens[context.ticket_id] = len(plan.prompt_ids)
        if self._settlements.flush_and_send(frame):
            self._pending_reservations.add(context.ticket_id, frame)

    def settle(self, ticket_id: str, reservation_id: str, settlement: Settle) -> None:
        """Settle a reservation. A deferred one is settled once auth has recorded it."""
        if not reservation_id:
            self.fallback.settle_deferred(ticket_id, settlement)
            return
        self._all_settled.clear()
        self._settlements.settle(reservation_id, settlement)

    async def identify(self, credential: Credential, timeout: float) -> Identity:
        """Return the caller's identity. Raises auth's rejection, or Unavailable after `timeout` seconds."""
        if self.is_unreachable:
            return self.fallback.identify(credential)
        if len(self._pending_identifies) >= self._requests.max_active_requests:
            raise Overloaded("this edge identifies too many callers at present", reason="EDGE_FULL", retry_after=1.0)
        request_id = uuid4().hex
        frame = AdmitRequest(identify=Identify(request_id=request_id, credential=credential))
        response: asyncio.Future[Identity] = asyncio.get_running_loop().create_future()
        self._pending_identifies[request_id] = frame, response
        self.fallback.on_request_sent(request_id)
        self._settlements.flush_and_send(frame)
        try:
            async with asyncio.timeout(timeout):
                identity = await response
        except TimeoutError:
            raise Unavailable("auth does not answer; retry in 1 s", reason="AUTH_LOST", retry_after=1.0) from None
        except PenstockError as error:
            self.fallback.invalidate_identity(error, credential)
            raise
        finally:
            del self._pending_identifies[request_id]
        self.fallback.cache_identified(credential, identity)
        return identity

    def accept_identity_header(self, header: str, credential: Credential) -> bool:
        """Return whether auth has identified the caller for our proxy. It is then known as after `identify`."""
        identity = self.identity_headers.verify(header, credential, self._runner.now()) if header else None
        if identity and not self.fallback.find_known(credential):
            self.fallback.cache_identified(credential, identity)
        return identity is not None

    async def authenticate(self, credential: Credential, timeout: float) -> Identity:
        """Return the caller's identity. Auth is asked only for a caller that it has not admitted recently."""
        return self.find_known(credential) or await self.identify(credential, timeout)

    def find_known(self, credential: Credential) -> Identity | None:
        """Return the identity of a caller that auth has admitted or identified recently, while auth is reachable."""
        return None if self.is_unreachable else self.fallback.find_known(credential)

    async def _resend_unconfirmed(self) -> None:
        """Repeat frames that auth received and did not confirm, for example because it could not write to its store."""
        while True:
            unconfirmed, deferred = self._settlements.reservation_ids, self.fallback.deferred_ticket_ids
            await asyncio.sleep(RESEND_INTERVAL_S)
            if self.fallback.is_store_unavailable:
                continue
            self.fallback.resend(deferred)
            self._settlements.resend(unconfirmed)
            self._recover_orphans()

    def _recover_orphans(self) -> None:
        """Repeat `reserve` for requests that are done. Auth returns the reservations, which are then settled."""
        deferred = self.fallback.deferred_ticket_ids
        for frame in self._pending_reservations.orphaned(
            lambda each: each in deferred or self._requests.get(each) is not None
        ):
            self._settlements.flush_and_send(frame)

    def _send(self, frame: AdmitRequest) -> bool:
        return bool(self._active_address) and self._streams[self._active_address].send(frame)

    async def _open(self, address: str) -> None:
        async with self._dialer.channel(address, "auth") as to_auth:
            link = self._streams[address] = AuthStream(
                f"auth {address}",
                lambda: AdmissionServiceStub(to_auth).Admit(),
                AdmitRequest,
                self._hello,
                on_frame=lambda frame: self._on_frame(address, frame),
                on_up=lambda _: self._on_up(address),
                on_down=lambda _: self._on_down(address),
                # A reconnected peer receives frames of all active requests, of as many deferred reservations and of as
                # many orphaned ones at once; a stalled peer is owed at most two frames for each, and one more for each
                # deferred reservation.
                capacity=7 * self._requests.max_active_requests,
                check_hello=self._dialer.hello_check("auth"),
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
        self._without_store.discard(address)
        if self._active_address == address:
            others = sorted(each for each, link in self._streams.items() if link.is_up and each != address)
            self._switch_to(others[0] if others else "", on_purpose=on_purpose)

    def _switch_to(self, address: str, *, on_purpose: bool = False) -> None:
        """Repeat all open frames to another replica, since the previous one may not have received them."""
        self._active_address = address
        self._settlements.discard_held()
        if not address:
            self.fallback.on_disconnected(on_purpose=on_purpose)
            return
        self._settlements.resend_all()  # first, as they free tokens of the grants that deferred reservations use
        self.fallback.on_connected()
        if address in self._without_store:
            self.fallback.on_store_state(is_unavailable=True)
        for request_id, (frame, _) in self._pending_identifies.items():
            self.fallback.on_request_sent(request_id)
            self._settlements.flush_and_send(frame)
        self._recover_orphans()
        for context in self._requests.in_state(RequestState.RESERVING):
            self._runner.apply(context, context.request.on_auth_connected())

    def _on_frame(self, address: str, frame: AdmitResponse) -> None:
        match frame.WhichOneof("frame"):
            case "admitted":
                self.fallback.on_response(frame.admitted.request_id)
                self._pending_reservations.remove(frame.admitted.request_id)
                self._on_admitted(frame.admitted)
            case "rejected":
                self.fallback.on_response(frame.rejected.request_id)
                self._pending_reservations.remove(frame.rejected.request_id)
                self._on_rejected(frame.rejected)
            case "settled":
                self.fallback.on_response()
                self._settlements.on_settled(frame.settled.reservation_id)
                self._check_settled()
            case "identified":
                self.fallback.on_response(frame.identified.request_id)
                if response := self._pending_identify(frame.identified.request_id):
                    response.set_result(frame.identified.identity)
            case "identity_keys":
                self.identity_headers.on_keys(address, frame.identity_keys, self._runner.now())
            case "store_state":
                self._on_store_state(address, is_unavailable=frame.store_state.is_unavailable)
            case "end":
                self._on_down(address, on_purpose=True)

    def _on_store_state(self, address: str, *, is_unavailable: bool) -> None:
        (self._without_store.add if is_unavailable else self._without_store.discard)(address)
        if address == self._active_address:
            self.fallback.on_store_state(is_unavailable=is_unavailable)

    def _pending_identify(self, request_id: str) -> "asyncio.Future[Identity] | None":
        _, response = self._pending_identifies.get(request_id, (None, None))
        return None if response is None or response.done() else response

    def _on_admitted(self, admitted: Admitted) -> None:
        context, reservation_id = self._requests.get(admitted.request_id), admitted.reservation_id
        entry = self.fallback.pop_deferred(admitted.request_id)
        self.fallback.cache_identity(admitted, context)
        if entry and entry.settlement:
            self.settle(admitted.request_id, reservation_id, entry.settlement)
            return
        if context is None:  # the request is done
            if reservation_id not in self._settlements:
                prompt_tokens = self._abandoned_tokens.pop(admitted.request_id, 0)
                self.settle(admitted.request_id, reservation_id, Settle(prompt_tokens, 0, "cancelled"))
            return
        if entry:
            context.request.reservation_id = reservation_id
            return
        context.limit_headers = limit_headers(admitted)
        request = context.request
        was_reserving = request.state is RequestState.RESERVING
        now = self._runner.now()
        effects = request.on_admitted(admitted.identity, admitted.reservation_id, now)
        if was_reserving:
            context.telemetry.on_admitted(now)
        self._runner.apply(context, effects)

    def _on_rejected(self, rejected: Rejected) -> None:
        if self.fallback.on_rejected(rejected):
            self._check_settled()
            return
        self._abandoned_tokens.pop(rejected.request_id, None)
        error = error_from_failure(rejected.failure)
        if response := self._pending_identify(rejected.request_id):
            response.set_exception(error)
        elif context := self._requests.get(rejected.request_id):
            self.fallback.invalidate_identity(error, context.credential)
            context.limit_headers = limit_headers(rejected)
            if rejected.key_id and context.request.state is RequestState.RESERVING:
                context.request.identity = Identity(tenant_id=rejected.tenant_id, key_id=rejected.key_id)
            self._runner.apply(context, context.request.on_auth_rejected(error, self._runner.now()))

    def _check_settled(self) -> None:
        if not self.unsettled:
            self._all_settled.set()

    def _decide_waiting(self) -> None:
        """Decide by fallback for all requests and callers that wait for auth, which has become unreachable."""
        for context in self._requests.in_state(RequestState.RESERVING):
            self.fallback.decide(context, is_pending=True)
        for frame, response in list(self._pending_identifies.values()):
            if response.done():
                continue
            try:
                response.set_result(self.fallback.identify(frame.identify.credential))
            except Unavailable as error:
                response.set_exception(error)
