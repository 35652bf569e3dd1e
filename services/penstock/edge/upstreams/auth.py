"""Client of auth: reservations, settlements and identification, each at the replica that must answer it."""

import asyncio
from collections.abc import Callable, Container, Sequence

from penstock.chassis.lifecycle import background
from penstock.chassis.security.channels import PLAINTEXT, Dialer
from penstock.edge.auth_fallback.fallback import AuthFallback
from penstock.edge.auth_fallback.partition_outages import PartitionGroup
from penstock.edge.auth_fallback.pending import AuthFallbackLimits
from penstock.edge.auth_fallback.watch import OutageWatch
from penstock.edge.lifecycle.context import EffectRunner, RequestContext
from penstock.edge.lifecycle.effects import Settle
from penstock.edge.lifecycle.output import GenerationPlan
from penstock.edge.lifecycle.record import RequestState
from penstock.edge.lifecycle.table import ActiveRequests
from penstock.edge.models.routes import RouteTable
from penstock.edge.request.identity_headers import IdentityHeaders
from penstock.edge.upstreams import frames
from penstock.edge.upstreams.auth_answers import AuthAnswers
from penstock.edge.upstreams.auth_streams import AuthStreams
from penstock.edge.upstreams.identify_calls import IdentifyCalls
from penstock.edge.upstreams.reservations import Reservations
from penstock.edge.upstreams.settlements import Settlements
from penstock.mesh.partitions import partition_of
from penstock.mesh.v1.admission_pb2 import AdmitResponse, Credential, Identity
from penstock.v1.inference_pb2 import Priority
from penstock.v1.stream_pb2 import Hello

RESEND_INTERVAL_S = 5.0


class AuthClient:
    """Sends each frame to the owner of its tenant's partition, and the open ones of a partition to its next owner.

    Repeating is safe, because `reserve` and `settle` are idempotent on their ids. While the owner of a partition is not
    reachable, `AuthFallback` decides.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        hello: Hello,
        requests: ActiveRequests,
        runner: EffectRunner,
        fallback_limits: AuthFallbackLimits,
        *,
        region: str = "",  # of this edge
        dialer: Dialer = PLAINTEXT,
    ) -> None:
        self._requests = requests
        self._runner = runner
        self._watch = OutageWatch(fallback_limits.outage_after, runner.now, on_unreachable=self._on_unreachable)
        self._streams = AuthStreams(
            addresses,
            hello,
            self._watch,
            dialer=dialer,
            # A new owner of all partitions receives frames of all active requests, of as many deferred reservations and
            # of as many orphaned ones at once; a stalled one is owed at most two frames for each, and one more for each
            # deferred reservation. A replica of several may have to take over the partitions of all others.
            capacity=7 * requests.max_active_requests,
            on_frame=self._on_frame,
            on_connected=self._on_connected,
            on_lost=self._on_lost,
            on_owners_changed=self._on_owners_changed,
        )
        self._settlements = Settlements(self._streams.send_to_owner, self._streams.send_later)
        self.fallback = AuthFallback(
            fallback_limits,
            runner,
            frames.reserve_admitted,
            self._watch,
            region=region,
            send=self._streams.send_to_owner,
        )
        self._identifies = IdentifyCalls(
            self._streams, self._watch, self.fallback, max_calls=requests.max_active_requests
        )
        self._reservations = Reservations(self._streams, self._watch, max_entries=requests.max_active_requests)
        self._answers = AuthAnswers(
            requests,
            runner,
            self._streams,
            self._watch,
            self.fallback,
            identifies=self._identifies,
            reservations=self._reservations,
            settlements=self._settlements,
            settle=self.settle,
            on_settled=self._check_settled,
        )
        self._all_settled = asyncio.Event()
        self._all_settled.set()
        self.identity_headers = IdentityHeaders()
        self.routes = RouteTable()

    @property
    def is_up(self) -> bool:
        """Whether a replica is connected."""
        return self._streams.is_up

    @property
    def unsettled(self) -> int:
        return len(self._settlements) + self.fallback.deferred

    @property
    def links_up(self) -> int:
        return self._streams.links_up

    @property
    def figures(self) -> dict[str, float]:
        """Figures of the admin snapshot."""
        return {
            "auth_links_up": self.links_up,
            "auth_partitions_unowned": self._streams.unowned_partitions,
            **self.fallback.figures,
        }

    async def run(self) -> None:
        try:
            async with background(self._resend_unconfirmed()):
                await self._streams.run()
        finally:
            self._watch.close()

    async def wait_settled(self) -> None:
        self._streams.expedite_settlements()
        if self.fallback.deferred:
            self._all_settled.clear()
        await self._all_settled.wait()

    # Requests.

    def find_identity(self, credential: Credential, priority: "Priority.ValueType") -> Identity | None:
        """Return the identity of a recently admitted caller, with the class it would get. None if it is not cached."""
        return self.fallback.find_identity(credential, priority)

    def find_admitted(self, credential: Credential, priority: "Priority.ValueType") -> Identity | None:
        """Return the identity of a caller whose last request auth admitted, with the class that the next one gets.

        None while the owner of its partition does not respond.
        """
        found = self.fallback.find_admitted(credential, priority)
        return None if found is None or self._watch.is_unreachable(partition_of(found.tenant_id)) else found

    def reserve(self, context: RequestContext) -> None:
        """Reserve tokens for a request, or decide by fallback. A lost `reserve` is repeated to the next owner."""
        partition = _partition(context)
        if self._watch.is_unreachable(partition) and (
            self.fallback.decide(context) or self._watch.is_store_unavailable(partition)
        ):
            return
        self._reservations.send(context.ticket_id, frames.reserve(context), partition)

    def charge_abandoned(self, context: RequestContext, plan: GenerationPlan) -> None:
        """Charge the prompt of a request that ended while it was tokenized. Not during an outage of its partition."""
        partition = _partition(context)
        if self._watch.is_unreachable(partition) or self._answers.abandoned >= self._requests.max_active_requests:
            return
        if self._reservations.send(context.ticket_id, frames.reserve_abandoned(context, plan), partition):
            self._answers.charge_abandoned(context.ticket_id, len(plan.prompt_ids))

    def settle(
        self,
        ticket_id: str,
        reservation_id: str,
        settlement: Settle,
        tenant_id: str,
        on_settled: Callable[[], None] | None = None,
    ) -> None:
        """Settle a reservation. A deferred one is settled once auth has recorded it.

        `on_settled` is called once auth has confirmed the settlement, or will never record the reservation.
        """
        if not reservation_id:
            self.fallback.settle_deferred(ticket_id, settlement, on_settled)
            return
        self._all_settled.clear()
        self._settlements.settle(reservation_id, settlement, partition_of(tenant_id), on_settled)

    # Callers.

    async def identify(self, credential: Credential, timeout: float) -> Identity:
        """Return the caller's identity. Raises auth's rejection, or Unavailable after `timeout` seconds."""
        return await self._identifies.identify(credential, timeout)

    async def delegate(self, credential: Credential, timeout: float) -> bytes:
        """Return a proof of auth that requests may run for the caller later. Raises as `identify`."""
        return await self._identifies.delegate(credential, timeout)

    def accept_identity_header(self, header: str, credential: Credential) -> bool:
        """Return whether auth has identified the caller for our proxy. It is then known as after `identify`.

        False if the tenant of the caller does not allow the region of this edge, so that auth is asked.
        """
        identity = self.identity_headers.verify(header, credential, self._runner.now()) if header else None
        if identity is None or self.fallback.refusal(identity):
            return False
        if not self.fallback.find_known(credential):
            self.fallback.cache_identified(credential, identity)
        return True

    async def authenticate(self, credential: Credential, timeout: float) -> Identity:
        """Return the caller's identity. Auth is asked only for a caller that it has not admitted recently."""
        return self.find_known(credential) or await self.identify(credential, timeout)

    def find_known(self, credential: Credential) -> Identity | None:
        """Return the identity of a caller that auth has admitted or identified recently, while a replica responds.

        If only the owner of the caller's partition does not respond, the reservation is decided or waits.
        """
        return None if self._watch.is_all_unreachable else self.fallback.find_known(credential)

    # Repetition.

    async def _resend_unconfirmed(self) -> None:
        """Repeat frames that auth received and did not confirm, for example because it could not write to its store."""
        while True:
            unconfirmed, deferred = self._settlements.reservation_ids, self.fallback.deferred_ticket_ids
            await asyncio.sleep(RESEND_INTERVAL_S)
            self._streams.restore_denied()
            self.fallback.resend(deferred)
            self._settlements.resend(unconfirmed, self._can_record)
            self._recover_orphans(self._can_record)

    def _can_record(self, partition: int) -> bool:
        return not self._watch.is_store_unavailable(partition)

    def _recover_orphans(self, is_sent: Callable[[int], bool]) -> None:
        """Repeat `reserve` for requests that are done. Auth returns the reservations, which are then settled."""
        deferred = self.fallback.deferred_ticket_ids
        self._reservations.resend_orphaned(
            lambda each: each in deferred or self._requests.get(each) is not None, is_sent
        )

    def _check_settled(self) -> None:
        if not self.unsettled:
            self._all_settled.set()

    # Events of replicas.

    def _on_frame(self, address: str, kind: str | None, frame: AdmitResponse) -> None:
        if self._answers.on_frame(address, kind, frame):
            return
        if kind == "identity_keys":
            self.identity_headers.on_keys(address, frame.identity_keys, self._runner.now())
        elif kind == "routes":
            self.routes.on_routes(frame.routes)
        elif kind == "residency":
            self.fallback.on_residency(address, frame.residency.digest)
        elif kind == "store_state":
            self._on_store_state(address, is_unavailable=frame.store_state.is_unavailable)

    def _on_connected(self, _address: str) -> None:
        self._identifies.move()
        self._runner.on_upstream_connected()

    def _on_lost(self, address: str) -> None:
        self._identifies.on_lost(address)

    def _on_owners_changed(self, partitions: frozenset[int]) -> None:
        """Repeat the open frames of these partitions to their new owners, which may not have received them."""
        owned = {partition for partition in partitions if self._streams.owner(partition)}
        if not owned:
            return
        self._settlements.resend_to_owners(owned)  # first, as they free tokens of grants of deferred reservations
        self.fallback.resend_to_owners(owned)
        self._reserve_again(lambda context: _partition(context) in owned)
        self._recover_orphans(owned.__contains__)

    def _on_store_state(self, address: str, *, is_unavailable: bool) -> None:
        self._watch.on_store_state(address, is_unavailable=is_unavailable)
        if not is_unavailable:
            owned = self._streams.owned_by(address)
            self.fallback.resend_to_owners(owned)
            self._reserve_again(lambda context: self._is_unsent(context, address, owned))
            self._identifies.move()
        self._watch.check()

    def _reserve_again(self, is_sent: Callable[[RequestContext], bool]) -> None:
        for context in self._requests.in_state(RequestState.RESERVING):
            if is_sent(context):
                self._runner.apply(context, context.request.on_auth_connected())

    def _is_unsent(self, context: RequestContext, address: str, owned: Container[int]) -> bool:
        return _partition(context) in owned and self._reservations.address(context.ticket_id) != address

    def _on_unreachable(self, groups: list[PartitionGroup]) -> None:
        """Decide by fallback for the requests and callers that wait for replicas which have become unreachable."""
        self._identifies.move()
        for context in self._requests.in_state(RequestState.RESERVING):
            if self._watch.group(_partition(context)) in groups:
                self.fallback.decide(context, is_pending=self._reservations.is_open(context.ticket_id))


def _partition(context: RequestContext) -> int:
    """Return the partition of the request's tenant.

    A caller is identified before its request is reserved. If the tenant is another one in the meantime, or unknown, the
    replica that receives the frame answers `not_owner` with the identity.
    """
    return partition_of(context.request.identity.tenant_id)
