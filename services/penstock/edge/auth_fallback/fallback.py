"""Auth fallback: while auth is unreachable, cached identities are admitted and other callers are rejected at once."""

import asyncio
import math
import secrets
from collections.abc import Callable
from contextvars import Context

import structlog

from penstock.chassis.clocks import StallFreeClock
from penstock.chassis.errors import (
    PenstockError,
    PermissionDenied,
    QuotaExceeded,
    Unauthenticated,
    Unavailable,
    error_from_failure,
)
from penstock.chassis.observability import semconv
from penstock.chassis.observability.telemetry import meter
from penstock.edge.auth_fallback.identity_cache import IdentityCache, KeyGrant
from penstock.edge.auth_fallback.outage import OutageDetector
from penstock.edge.auth_fallback.pending import AuthFallbackLimits, DeferredReservation, DeferredReservations
from penstock.edge.lifecycle.context import EffectRunner, RequestContext
from penstock.edge.lifecycle.effects import Settle
from penstock.mesh.v1.admission_pb2 import AdmitRequest, Admitted, Credential, Identity, Rejected
from penstock.v1.inference_pb2 import PRIORITY_UNSPECIFIED, Priority

log = structlog.get_logger()

RETRY_AFTER_S = 1.0  # auth starts within one or two seconds
MAX_COUNTED_STEP_S = 0.25  # longest step of the clock; more than that is a stall of the edge
MAX_GRANT_REJECTIONS = 3  # of a deferred reservation, after which auth is assumed never to record it

_decisions = meter().create_counter(
    semconv.PENSTOCK_AUTH_FALLBACK_DECISIONS,
    unit="{request}",
    description="Decisions of the edge while auth was unreachable, by outcome.",
)


class AuthFallback:
    """Decides requests while `is_unreachable`. `on_unreachable` is called once for each outage, when it begins."""

    def __init__(
        self,
        limits: AuthFallbackLimits,
        runner: EffectRunner,
        deferred_frame: Callable[[RequestContext, str, bytes], AdmitRequest],  # of a request, its key id and its grant
        *,
        send: Callable[[AdmitRequest], object],
        on_unreachable: Callable[[], None],
    ) -> None:
        self._limits = limits
        self._runner = runner
        self._deferred_frame = deferred_frame
        self._send = send
        self._on_unreachable = on_unreachable
        self._outage = OutageDetector(outage_after=limits.outage_after)
        self._step = min(MAX_COUNTED_STEP_S, limits.outage_after / 4) or MAX_COUNTED_STEP_S
        self._clock = StallFreeClock(self._step)
        self._identities = IdentityCache(
            max_entries=limits.max_identities, ttl=limits.identity_ttl, pepper=secrets.token_bytes(32)
        )
        self._deferred = DeferredReservations(max_entries=limits.max_deferred)
        self._timer: asyncio.TimerHandle | None = None
        self._is_reported = False  # `on_unreachable` was called for the present outage
        self.admitted = 0
        self.rejected = 0

    @property
    def is_unreachable(self) -> bool:
        return self._outage.is_unreachable(self._running_time())

    @property
    def is_store_unavailable(self) -> bool:
        """Whether auth responds and cannot record anything. Frames that it would record are sent when it can."""
        return self._outage.is_store_unavailable

    @property
    def figures(self) -> dict[str, float]:
        """Figures of the admin snapshot."""
        return {
            "auth_unreachable": self.is_unreachable,
            "fallback_admitted": self.admitted,
            "fallback_rejected": self.rejected,
            "deferred_reservations": self.deferred,
            "cached_identities": len(self._identities),
        }

    @property
    def deferred(self) -> int:
        return len(self._deferred)

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    # Events of the stream to auth.

    def on_connected(self) -> None:
        """Send all deferred reservations first, so that the next token grants account for them."""
        self._outage.on_connected(self._running_time())
        self._is_reported = False
        self.resend(self._deferred.ticket_ids)

    def on_disconnected(self, *, on_purpose: bool = False) -> None:
        self._outage.on_disconnected(self._running_time(), on_purpose=on_purpose)
        self.close()  # the check may be due earlier now
        self._schedule_check()

    def on_store_state(self, *, is_unavailable: bool) -> None:
        """Decide from now on, as auth cannot write to its store; or let auth record the deferred reservations again."""
        self._outage.on_store_state(self._running_time(), is_unavailable=is_unavailable)
        if is_unavailable:
            self.close()
            self._check()
        else:
            self._is_reported = False
            self.resend(self._deferred.ticket_ids)

    def on_request_sent(self, request_id: str) -> None:
        self._outage.on_request_sent(request_id, self._running_time())
        self._schedule_check()

    def on_response(self, request_id: str = "") -> None:
        self._outage.on_response(self._running_time(), request_id)
        self._is_reported = self._is_reported and self.is_store_unavailable
        self._schedule_check()

    def resend(self, ticket_ids: set[str]) -> None:
        """Send the reservations of these tickets again that are still deferred."""
        for frame in self._deferred.frames(ticket_ids, self._runner.now()):
            self._send(frame)

    @property
    def deferred_ticket_ids(self) -> set[str]:
        return self._deferred.ticket_ids

    # Responses of auth.

    def cache_identity(self, admitted: Admitted, context: RequestContext | None) -> None:
        """Cache the admitted identity, and the tokens that auth grants to its tenant for an outage."""
        now = self._runner.now()
        if context:
            self._identities.record_admitted(context.credential, admitted.identity, context.spec.priority, now)
        tenant_id = admitted.identity.tenant_id
        expires_at = now + admitted.fallback_grant_time_left_nanos / 1e9 if admitted.fallback_grant else math.inf
        grant = KeyGrant(admitted.fallback_tokens, admitted.fallback_grant, expires_at)
        self._identities.grant_key(admitted.identity.key_id, grant)
        self._identities.grant(tenant_id, admitted.fallback_tokens - self._deferred.tokens_of(tenant_id))

    def cache_identified(self, credential: Credential, identity: Identity) -> None:
        self._identities.record_identified(credential, identity, self._runner.now())

    def find_known(self, credential: Credential) -> Identity | None:
        """Return the identity of a caller that auth recently admitted or identified."""
        return self._identities.find_known(credential, self._runner.now())

    def invalidate_identity(self, error: PenstockError, credential: Credential) -> None:
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
        return True

    def settle_deferred(self, ticket_id: str, settlement: Settle) -> None:
        """Settle a request that ended before auth recorded its reservation, or after auth rejected it for good.

        Auth is told at once that the request used fewer tokens of its grant, before another request may use the others.
        """
        if ticket_id not in self._deferred:
            return
        entry, unused = self._deferred.settle(ticket_id, settlement)
        self._identities.release(entry.tenant_id, entry.grant, unused)
        if not self.is_store_unavailable:
            self._send(entry.frame_at(self._runner.now()))

    def find_identity(self, credential: Credential, priority: "Priority.ValueType") -> Identity | None:
        return self._identities.find(credential, priority, self._runner.now())

    # Decisions.

    def identify(self, credential: Credential, priority: "Priority.ValueType" = PRIORITY_UNSPECIFIED) -> Identity:
        """Return a cached identity. Raises Unavailable / AUTH_LOST if none is cached or the fallback period is over."""
        identity = self._identities.find(credential, priority, self._runner.now())
        if identity is None:
            raise self._rejection("unknown", "auth is unreachable and has not admitted this caller recently")
        if self._outage.outage_duration(self._running_time()) >= self._limits.max_duration:
            raise self._rejection("over", f"auth has been unreachable for more than {self._limits.max_duration:g} s")
        return identity

    def decide(self, context: RequestContext, *, is_pending: bool = False) -> None:
        """Admit or reject a request. `is_pending`: `reserve` was sent, so auth may hold a reservation for it."""
        request = context.request
        if not request.is_waiting_for_auth:
            return
        try:
            identity = self._admit(context)
        except Unavailable as error:
            now = self._runner.now()
            self._runner.apply(
                context, request.fail(error, now) if is_pending else request.on_auth_rejected(error, now)
            )
            return
        now = self._runner.now()
        context.telemetry.on_admitted(now, by_fallback=True)
        self._runner.apply(context, request.on_admitted(identity, "", now))

    def _admit(self, context: RequestContext) -> Identity:
        identity = self.identify(context.credential, context.spec.priority)
        request = context.request
        tokens = request.prompt_tokens + max(0, request.output.tokens_left)
        now = self._runner.now()
        grant = (
            None
            if self._deferred.is_full
            else self._identities.acquire(identity.tenant_id, identity.key_id, tokens, now)
        )
        if grant is None:
            raise self._rejection(
                "exhausted", "auth is unreachable and the tokens that it granted to this tenant are used up"
            )
        frame = self._deferred_frame(context, identity.key_id, grant.proof)
        self._deferred.add(request.ticket_id, DeferredReservation(identity.tenant_id, tokens, grant, now, frame))
        if not self.is_store_unavailable:
            self._send(frame)
        self.admitted += 1
        _decisions.add(1, {"outcome": "admitted"})
        return identity

    def _rejection(self, outcome: str, message: str) -> Unavailable:
        self.rejected += 1
        _decisions.add(1, {"outcome": outcome})
        return Unavailable(f"{message}; retry in {RETRY_AFTER_S:g} s", reason="AUTH_LOST", retry_after=RETRY_AFTER_S)

    # The timer.

    def _running_time(self) -> float:
        return self._clock.at(self._runner.now())

    def _schedule_check(self) -> None:
        if self._timer is None and self._outage.is_timing:
            often, left = self._step / 2, self._outage.outage_at - self._running_time()
            delay = left if 0 < left < often else often
            # An empty context, so that log lines of the check do not name the latest request.
            self._timer = asyncio.get_running_loop().call_later(delay, self._check, context=Context())

    def _check(self) -> None:
        self._timer = None
        now = self._running_time()
        self._outage.check(now)
        if self._outage.is_unreachable(now) and not self._is_reported:
            self._is_reported = True
            log.warning("auth_unreachable", silent_s=round(self._outage.outage_duration(now), 3))
            self._on_unreachable()
        self._schedule_check()
