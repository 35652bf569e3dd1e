"""Auth fallback: while auth is unreachable, cached identities are admitted and other callers are rejected at once."""

import math
import secrets
from collections.abc import Callable, Container
from typing import NamedTuple

import structlog

from penstock.chassis.errors import (
    PenstockError,
    PermissionDenied,
    QuotaExceeded,
    Unauthenticated,
    Unavailable,
    error_from_failure,
)
from penstock.chassis.observability.metrics import counter
from penstock.edge.auth_fallback.identity_cache import IdentityCache, KeyGrant
from penstock.edge.auth_fallback.pending import AuthFallbackLimits, DeferredReservation, DeferredReservations
from penstock.edge.auth_fallback.residency import Residency
from penstock.edge.auth_fallback.watch import OutageWatch
from penstock.edge.lifecycle.context import EffectRunner, RequestContext
from penstock.edge.lifecycle.effects import Settle
from penstock.edge.series import FALLBACK_DECISIONS
from penstock.mesh.partitions import partition_of
from penstock.mesh.v1.admission_pb2 import AdmitRequest, Admitted, Credential, Identity, Rejected
from penstock.v1.inference_pb2 import PRIORITY_UNSPECIFIED, Priority

log = structlog.get_logger()

RETRY_AFTER_S = 1.0  # auth starts within one or two seconds
MAX_GRANT_REJECTIONS = 3  # of a deferred reservation, after which auth is assumed never to record it

_decisions = counter(FALLBACK_DECISIONS)


class Refusal(NamedTuple):
    """Why a request is not admitted under grants."""

    outcome: str  # of the metric
    message: str
    tenant_id: str = ""  # empty: the caller is not cached


class AuthFallback:
    """Decides requests of partitions that are unreachable, as `watch` says."""

    def __init__(
        self,
        limits: AuthFallbackLimits,
        runner: EffectRunner,
        deferred_frame: Callable[[RequestContext, Identity, bytes], AdmitRequest],  # of request, caller and grant
        watch: OutageWatch,
        *,
        region: str,  # of this edge; empty: not set
        send: Callable[[int, AdmitRequest], object],  # to the owner of a partition
    ) -> None:
        self._limits = limits
        self._runner = runner
        self._deferred_frame = deferred_frame
        self._watch = watch
        self._residency = Residency(region)
        self._send = send
        self._identities = IdentityCache(
            max_entries=limits.max_identities, ttl=limits.identity_ttl, pepper=secrets.token_bytes(32)
        )
        self._deferred = DeferredReservations(max_entries=limits.max_deferred)
        self.admitted = 0
        self.rejected = 0

    @property
    def is_active(self) -> bool:
        """Whether an owner of partitions is unreachable, so that this edge decides for some tenants."""
        return self._watch.is_any_unreachable

    @property
    def figures(self) -> dict[str, float]:
        """Figures of the admin snapshot."""
        return {
            "auth_unreachable": self.is_active,
            "fallback_admitted": self.admitted,
            "fallback_rejected": self.rejected,
            "deferred_reservations": self.deferred,
            "cached_identities": len(self._identities),
        }

    # Deferred reservations.

    @property
    def deferred(self) -> int:
        return len(self._deferred)

    @property
    def deferred_ticket_ids(self) -> set[str]:
        return self._deferred.ticket_ids

    def deferred_partition(self, ticket_id: str) -> int | None:
        """Return the partition of a deferred reservation. None if it is not deferred."""
        entry = self._deferred.get(ticket_id)
        return entry.partition if entry else None

    def resend(self, ticket_ids: set[str]) -> None:
        """Send the reservations of these tickets again that are still deferred."""
        for entry in self._deferred.entries(ticket_ids):
            self._send_deferred(entry)

    def resend_to_owners(self, partitions: Container[int]) -> None:
        """Send the deferred reservations of these partitions first, so that the next grants account for them."""
        for entry in self._deferred.entries(self._deferred.ticket_ids):
            if entry.partition in partitions:
                self._send_deferred(entry)

    def _send_deferred(self, entry: DeferredReservation) -> None:
        if not self._watch.is_store_unavailable(entry.partition):
            self._send(entry.partition, entry.frame_at(self._runner.now()))

    # Responses of auth.

    def refusal(self, identity: Identity) -> PermissionDenied | None:
        """Return the error of a caller whose tenant does not allow the region of this edge."""
        return self._residency.refusal(identity)

    def on_residency(self, address: str, digest: bytes) -> None:
        """Forget all callers if tenants allow other regions than before, because some may be refused now."""
        if self._residency.is_changed(address, digest):
            self._identities.forget_identities()

    def cache_identity(self, admitted: Admitted, context: RequestContext | None) -> PermissionDenied | None:
        """Cache the admitted identity, and the tokens that auth grants to its tenant for an outage.

        Returns the error of a caller that this edge refuses, which is not cached. Auth admits such a caller if it is of
        another region, or if this edge admitted the request under a grant before the regions of the tenant changed.
        """
        now, refusal = self._runner.now(), self.refusal(admitted.identity)
        if context and refusal:
            self._identities.invalidate(context.credential)
        elif context:
            self._identities.record_admitted(context.credential, admitted.identity, context.spec.priority, now)
        tenant_id = admitted.identity.tenant_id
        expires_at = now + admitted.fallback_grant_time_left_nanos / 1e9 if admitted.fallback_grant else math.inf
        grant = KeyGrant(admitted.fallback_tokens, admitted.fallback_grant, expires_at)
        self._identities.grant_key(admitted.identity.key_id, grant)
        self._identities.grant(tenant_id, admitted.fallback_tokens - self._deferred.tokens_of(tenant_id))
        return refusal

    def cache_identified(self, credential: Credential, identity: Identity) -> None:
        """Cache a caller that auth has identified, unless this edge refuses it."""
        if self.refusal(identity) is None:
            self._identities.record_identified(credential, identity, self._runner.now())

    def find_known(self, credential: Credential) -> Identity | None:
        """Return the identity of a caller that auth recently admitted or identified."""
        return self._identities.find_known(credential, self._runner.now())

    def find_admitted(self, credential: Credential, priority: "Priority.ValueType") -> Identity | None:
        """Return the identity of a caller as `find_identity`. None if auth rejected the last request of the caller."""
        return self._identities.find(credential, priority, self._runner.now(), accepts_rejected=False)

    def invalidate_identity(self, error: PenstockError, credential: Credential) -> None:
        """Apply a rejection by auth. Further tickets of the caller wait for auth, so that they do not flood a shard."""
        self._identities.record_rejected(credential)
        if isinstance(error, Unauthenticated | PermissionDenied):
            self._identities.invalidate(credential)
        elif isinstance(error, QuotaExceeded):
            self._identities.revoke_grant(credential)

    def pop_deferred(self, ticket_id: str) -> DeferredReservation | None:
        """Remove and return a reservation that auth has recorded. Its settlement, if set, must be sent now."""
        return self._deferred.pop(ticket_id)

    def on_rejected(self, rejected: Rejected) -> bool:
        """Return whether the rejected reservation was deferred. It is sent again, unless auth will never record it."""
        ticket_id, error = rejected.request_id, error_from_failure(rejected.failure)
        if ticket_id not in self._deferred:
            return False
        is_final = error.reason == "KEY_UNKNOWN"
        if error.reason == "GRANT_INVALID":  # settlements on their way may free tokens of the grant
            is_final = self._deferred.count_rejection(ticket_id) >= MAX_GRANT_REJECTIONS
        if is_final:
            entry = self._deferred.pop(ticket_id)
            caller = entry.caller if entry else {}
            log.error("deferred_reservation_rejected", ticket_id=ticket_id, **caller, because=error.message)
            if entry and entry.on_settled:
                entry.on_settled()
        return True

    def settle_deferred(self, ticket_id: str, settlement: Settle, on_settled: Callable[[], None] | None = None) -> None:
        """Settle a request that ended before auth recorded its reservation, or after auth rejected it for good.

        Auth is told at once that the request used fewer tokens of its grant, before another request may use the others.
        `on_settled` as in `AuthClient.settle`.
        """
        if ticket_id not in self._deferred:
            if on_settled:
                on_settled()
            return
        entry, unused = self._deferred.settle(ticket_id, settlement)
        entry.on_settled = on_settled
        self._identities.release(entry.tenant_id, entry.grant, unused)
        self._send_deferred(entry)

    def await_record(self, ticket_id: str, on_recorded: Callable[[str], None]) -> None:
        """Call `on_recorded` with the reservation id when auth has recorded a request whose settlement is held.

        No effect if its reservation is not deferred.
        """
        if entry := self._deferred.get(ticket_id):
            entry.on_recorded = on_recorded

    def find_identity(self, credential: Credential, priority: "Priority.ValueType") -> Identity | None:
        return self._identities.find(credential, priority, self._runner.now())

    # Decisions.

    def identify(self, credential: Credential) -> Identity:
        """Return a cached identity. Raises Unavailable / AUTH_LOST if none is cached or the fallback period is over."""
        found = self._find_admissible(credential, PRIORITY_UNSPECIFIED)
        if isinstance(found, Refusal):
            raise self._rejection(found)
        return found

    def decide(self, context: RequestContext, *, is_pending: bool = False) -> bool:
        """Admit or reject a request. Returns false if it waits for the next owner of its partition.

        `is_pending`: `reserve` was sent, so auth may hold a reservation for it.
        """
        request = context.request
        if not request.is_waiting_for_auth:
            return True
        found = self._admit(context)
        now = self._runner.now()
        if isinstance(found, Identity):
            context.telemetry.on_admitted_by_fallback()
            self._runner.apply(context, request.on_admitted(found, "", now))
            return True
        tenant_id = found.tenant_id or request.identity.tenant_id
        if tenant_id and self._watch.is_takeover_expected(partition_of(tenant_id)):
            return False
        error = self._rejection(found)
        self._runner.apply(context, request.fail(error, now) if is_pending else request.on_auth_rejected(error, now))
        return True

    def _admit(self, context: RequestContext) -> Identity | Refusal:
        """Take the request's tokens from the grants of its caller, and defer its reservation."""
        identity = self._find_admissible(context.credential, context.spec.priority)
        if isinstance(identity, Refusal):
            return identity
        if context.credential.delegation:  # its caller does not wait, so that the tokens are for callers who do
            message = "auth is unreachable, and a line of a batch waits for it"
            return Refusal("delegated", message, identity.tenant_id)
        request = context.request
        tokens = request.charged_prompt_tokens + max(0, request.output.tokens_left)
        now = self._runner.now()
        grant = (
            None
            if self._deferred.is_full
            else self._identities.acquire(identity.tenant_id, identity.key_id, tokens, now)
        )
        if grant is None:
            message = "auth is unreachable and the tokens that it granted to this tenant are used up"
            return Refusal("exhausted", message, identity.tenant_id)
        frame = self._deferred_frame(context, identity, grant.proof)
        entry = DeferredReservation(identity.tenant_id, tokens, grant, now, frame)
        self._deferred.add(request.ticket_id, entry)
        self._send_deferred(entry)
        self.admitted += 1
        _decisions.labels("admitted").inc()
        return identity

    def _find_admissible(self, credential: Credential, priority: "Priority.ValueType") -> Identity | Refusal:
        identity = self._identities.find(credential, priority, self._runner.now())
        if identity is None:
            return Refusal("unknown", "auth is unreachable and has not admitted this caller recently")
        if self._watch.outage_duration(partition_of(identity.tenant_id)) >= self._limits.max_duration:
            message = f"auth has been unreachable for more than {self._limits.max_duration:g} s"
            return Refusal("over", message, identity.tenant_id)
        return identity

    def _rejection(self, refusal: Refusal) -> Unavailable:
        self.rejected += 1
        _decisions.labels(refusal.outcome).inc()
        text = f"{refusal.message}; retry in {RETRY_AFTER_S:g} s"
        return Unavailable(text, reason="AUTH_LOST", retry_after=RETRY_AFTER_S)
