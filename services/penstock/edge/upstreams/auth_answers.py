"""Answers of auth, as events of requests, callers and settlements."""

from collections.abc import Callable

from penstock.chassis.errors import PenstockError, error_from_failure
from penstock.edge.auth_fallback.fallback import AuthFallback
from penstock.edge.auth_fallback.watch import OutageWatch
from penstock.edge.lifecycle.context import EffectRunner, RequestContext
from penstock.edge.lifecycle.effects import Settle
from penstock.edge.lifecycle.record import RequestState
from penstock.edge.lifecycle.table import ActiveRequests
from penstock.edge.request.limit_headers import limit_headers
from penstock.edge.upstreams.auth_streams import AuthStreams
from penstock.edge.upstreams.identify_calls import IdentifyCalls
from penstock.edge.upstreams.reservations import Reservations
from penstock.edge.upstreams.settlements import Settlements
from penstock.mesh.partitions import partition_of
from penstock.mesh.v1.admission_pb2 import AdmitResponse, Admitted, Identity, NotOwner, Rejected

STORE_UNAVAILABLE = "STORE_UNAVAILABLE"


class AuthAnswers:
    """Applies the frames that answer a frame of this edge."""

    def __init__(
        self,
        requests: ActiveRequests,
        runner: EffectRunner,
        streams: AuthStreams,
        watch: OutageWatch,
        fallback: AuthFallback,
        *,
        identifies: IdentifyCalls,
        reservations: Reservations,
        settlements: Settlements,
        settle: Callable[[str, str, Settle, str, Callable[[], None] | None], None],  # as `AuthClient.settle`
        on_settled: Callable[[], None],
    ) -> None:
        self._requests = requests
        self._runner = runner
        self._streams = streams
        self._watch = watch
        self._fallback = fallback
        self._identifies = identifies
        self._reservations = reservations
        self._settlements = settlements
        self._settle = settle
        self._on_settled = on_settled
        self._abandoned_tokens: dict[str, int] = {}

    @property
    def abandoned(self) -> int:
        """Number of ended requests whose prompts are to be charged."""
        return len(self._abandoned_tokens)

    def charge_abandoned(self, ticket_id: str, prompt_tokens: int) -> None:
        """Charge the prompt of a request that has ended once auth has reserved its tokens."""
        self._abandoned_tokens[ticket_id] = prompt_tokens

    def on_frame(self, address: str, kind: str | None, frame: AdmitResponse) -> bool:
        """Apply a frame. Returns false if it is not an answer."""
        match kind:
            case "admitted":
                self._watch.on_response(address, frame.admitted.request_id)
                self._reservations.remove(frame.admitted.request_id)
                self._on_admitted(frame.admitted)
            case "rejected":
                self._watch.on_response(address, frame.rejected.request_id)
                self._reservations.remove(frame.rejected.request_id)
                self._on_rejected(frame.rejected)
            case "settled":
                self._watch.on_response(address)
                self._settlements.on_settled(frame.settled.reservation_id)
                self._on_settled()
            case "identified":
                self._watch.on_response(address, frame.identified.request_id)
                self._identifies.on_identified(frame.identified)
            case "not_owner":
                self._watch.on_response(address, frame.not_owner.request_id)
                self._on_not_owner(address, frame.not_owner)
            case _:
                return False
        return True

    def _on_admitted(self, admitted: Admitted) -> None:
        context, reservation_id = self._requests.get(admitted.request_id), admitted.reservation_id
        tenant_id = admitted.identity.tenant_id
        entry = self._fallback.pop_deferred(admitted.request_id)
        refusal = self._fallback.cache_identity(admitted, context)
        if refusal and context and entry is None:
            self._refuse(context, admitted, refusal)
            return
        if entry and entry.settlement:
            self._settle(admitted.request_id, reservation_id, entry.settlement, tenant_id, entry.on_settled)
            return
        if context is None and entry and entry.on_recorded:
            entry.on_recorded(reservation_id)
            return
        if context is None:  # the request is done
            if reservation_id not in self._settlements:
                prompt_tokens = self._abandoned_tokens.pop(admitted.request_id, 0)
                self._settle(
                    admitted.request_id, reservation_id, Settle(prompt_tokens, 0, "cancelled"), tenant_id, None
                )
            return
        if entry:
            context.request.reservation_id = reservation_id
            return
        context.limit_headers = limit_headers(admitted)
        request = context.request
        effects = request.on_admitted(admitted.identity, admitted.reservation_id, self._runner.now())
        self._runner.apply(context, effects)

    def _refuse(self, context: RequestContext, admitted: Admitted, error: PenstockError) -> None:
        """Refuse a request that an auth of another region has admitted, and give its tokens back."""
        unused, tenant_id = Settle(0, 0, "shed"), admitted.identity.tenant_id
        self._settle(admitted.request_id, admitted.reservation_id, unused, tenant_id, None)
        self._runner.apply(context, context.request.on_auth_rejected(error, self._runner.now()))

    def _on_rejected(self, rejected: Rejected) -> None:
        if self._fallback.on_rejected(rejected):
            self._on_settled()
            return
        self._abandoned_tokens.pop(rejected.request_id, None)
        error = error_from_failure(rejected.failure)
        if self._identifies.on_rejected(rejected.request_id, error):
            return
        context = self._requests.get(rejected.request_id)
        if context is None or self._waits_for_takeover(context, error):
            return
        self._fallback.invalidate_identity(error, context.credential)
        context.limit_headers = limit_headers(rejected)
        if rejected.key_id and context.request.state is RequestState.RESERVING:
            context.request.identity = Identity(tenant_id=rejected.tenant_id, key_id=rejected.key_id)
        self._runner.apply(context, context.request.on_auth_rejected(error, self._runner.now()))

    def _waits_for_takeover(self, context: RequestContext, error: PenstockError) -> bool:
        """Whether the owner of a request's partition has no store, and another replica may take the partition over."""
        tenant_id = context.request.identity.tenant_id
        return (
            error.reason == STORE_UNAVAILABLE
            and bool(tenant_id)
            and context.request.is_waiting_for_auth
            and self._watch.is_unreachable(partition_of(tenant_id))
            and self._watch.is_takeover_expected(partition_of(tenant_id))
        )

    def _on_not_owner(self, address: str, frame: NotOwner) -> None:
        """Send a frame to the owner of its partition, unless it was sent there when the owner changed.

        If the answering replica still counts as the owner, the frame waits for its next claim. Thus two replicas never
        pass a frame to and fro.
        """
        if frame.reservation_id:
            partition = self._settlements.partition(frame.reservation_id)
        elif (partition := self._fallback.deferred_partition(frame.request_id)) is None:
            self._on_not_reserved(address, frame)
            return
        if partition is not None:
            self._streams.deny(address, partition)

    def _on_not_reserved(self, address: str, frame: NotOwner) -> None:
        ticket_id, tenant_id = frame.request_id, frame.identity.tenant_id
        sent, context = self._reservations.get(ticket_id), self._requests.get(ticket_id)
        if sent is None:  # it was answered by another replica
            return
        partition = partition_of(tenant_id) if tenant_id else sent.partition
        if context and tenant_id:
            self._fallback.cache_identified(context.credential, frame.identity)
            if context.request.state is RequestState.RESERVING:
                context.request.identity = frame.identity
        self._reservations.on_not_owner(ticket_id, address, partition)
        if self._streams.owner(partition) == address:
            self._streams.deny(address, partition)
        elif partition != sent.partition:  # the edge knew another tenant, or none
            if context is None:
                self._reservations.send(ticket_id, sent.frame, partition)
            else:
                self._runner.apply(context, context.request.on_auth_connected())
