"""The edge's way on while auth is away: known callers are let in, others refused at once, and auth told afterwards."""

import asyncio
import secrets
from collections.abc import Callable
from contextvars import Context

import structlog

from penstock.chassis import semconv
from penstock.chassis.errors import PermissionDenied, QuotaExceeded, Unauthenticated, Unavailable, error_from_failure
from penstock.chassis.own_time import OwnTime
from penstock.chassis.telemetry import meter
from penstock.edge.flight.effects import Settle
from penstock.edge.grace.callers import Callers
from penstock.edge.grace.limits import GraceLimits
from penstock.edge.grace.silence import Silence
from penstock.edge.grace.unbooked import Entry, Unbooked
from penstock.edge.links import frames
from penstock.edge.passage import Control, Passage
from penstock.mesh.v1.admission_pb2 import AdmitRequest, Admitted, Credential, Identity, Refused
from penstock.v1.inference_pb2 import PRIORITY_UNSPECIFIED, Priority

log = structlog.get_logger()

RETRY_AFTER = 1.0  # s; auth starts within one or two
STEP = 0.25  # s of silence that count at once; more than that the edge did not hear, as it stood still

_decisions = meter().create_counter(
    semconv.PENSTOCK_GRACE_DECISIONS, unit="{request}", description="Made by the edge while auth was away, by outcome."
)


class Grace:
    """Decides only while auth `is_away`. `overdue` is called when it has become so, for all who wait already."""

    def __init__(
        self,
        limits: GraceLimits,
        control: Control,
        *,
        say: Callable[[AdmitRequest], object],
        overdue: Callable[[], None],
    ) -> None:
        self._limits = limits
        self._control = control
        self._say = say
        self._overdue = overdue
        self._silence = Silence(after=limits.after)
        self._step = min(STEP, limits.after / 4) or STEP
        self._own_time = OwnTime(self._step)
        self._callers = Callers(most=limits.callers, memory=limits.memory, pepper=secrets.token_bytes(32))
        self._unbooked = Unbooked(most=limits.unbooked)
        self._timer: asyncio.TimerHandle | None = None
        self._was_told = False  # `overdue`, of the present silence
        self.admitted = 0
        self.refused = 0

    @property
    def is_away(self) -> bool:
        return self._silence.is_away(self._ran())

    @property
    def known_callers(self) -> int:
        return len(self._callers)

    @property
    def unbooked(self) -> int:
        return len(self._unbooked)

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    # What the link tells.

    def came(self) -> None:
        """Auth can be told: first of all what was let in without it, so that what it grants next counts that."""
        self._silence.came(self._ran())
        self._was_told = False
        self.remind(set(self._unbooked.frames))

    def went(self, *, on_purpose: bool = False) -> None:
        self._silence.went(self._ran(), on_purpose=on_purpose)
        self.close()  # it may be due earlier now
        self._arm()

    def asked(self, request_id: str) -> None:
        self._silence.asked(request_id, self._ran())
        self._arm()

    def heard(self, request_id: str = "") -> None:
        self._silence.heard(self._ran(), request_id)
        self._was_told = False
        self._arm()

    def remind(self, ticket_ids: set[str]) -> None:
        """Say again what of these is still not booked."""
        for ticket_id, frame in self._unbooked.frames.items():
            if ticket_id in ticket_ids:
                self._say(frame)

    @property
    def ticket_ids(self) -> set[str]:
        return set(self._unbooked.frames)

    # What auth says.

    def learn(self, admitted: Admitted, passage: Passage | None) -> None:
        """Remember who was let in, and what may be spent without asking."""
        if passage:
            self._callers.met(passage.credential, admitted.identity, passage.spec.priority, self._control.now())
        tenant_id = admitted.identity.tenant_id
        self._callers.grant(tenant_id, admitted.grace_tokens - self._unbooked.tokens_of(tenant_id))

    def unlearn(self, refused: Refused, credential: Credential) -> None:
        error = error_from_failure(refused.failure)
        if isinstance(error, Unauthenticated | PermissionDenied):
            self._callers.forget(credential)
        elif isinstance(error, QuotaExceeded):
            self._callers.exhaust(credential)

    def booked(self, ticket_id: str) -> Entry | None:
        """Take out what auth has booked; what was spent of it is to be settled now, or later like anything else."""
        return self._unbooked.pop(ticket_id)

    def is_unbooked(self, refused: Refused) -> bool:
        """Whether it was let in already; then it is said again later, unless auth can never book it."""
        if refused.request_id not in self._unbooked:
            return False
        error = error_from_failure(refused.failure)
        if error.reason == "KEY_UNKNOWN":
            entry = self._unbooked.pop(refused.request_id)
            names = {"tenant": entry.tenant_id, "key_id": entry.frame.reserve.vouch.key_id} if entry else {}
            log.error("grace_not_booked", ticket_id=refused.request_id, **names, because=error.message)
        return True

    def ended(self, ticket_id: str, spent: Settle) -> None:
        """A request that was let in is over before auth could book it, or after auth said that it never can."""
        if ticket_id not in self._unbooked:
            return
        self._callers.give_back(*self._unbooked.end(ticket_id, spent))

    def met(self, credential: Credential, asked: "Priority.ValueType") -> Identity | None:
        return self._callers.find(credential, asked, self._control.now())

    # What is decided here.

    def identify(self, credential: Credential, asked: "Priority.ValueType" = PRIORITY_UNSPECIFIED) -> Identity:
        """Return who it is; raises Unavailable / AUTH_LOST for who is not known, and when the grace is over."""
        identity = self._callers.find(credential, asked, self._control.now())
        if identity is None:
            raise self._refusal("unknown", "auth is away, and did not let this caller in of late")
        if self._silence.lasted(self._ran()) >= self._limits.lasts:
            raise self._refusal("over", f"auth has been away for more than {self._limits.lasts:g} s")
        return identity

    def decide(self, passage: Passage, *, was_asked: bool = False) -> None:
        """Let a request in or refuse it; auth may hold a reservation for it that `was_asked` for."""
        flight = passage.flight
        if not flight.waits_for_auth:
            return
        try:
            identity = self._let_in(passage)
        except Unavailable as error:
            now = self._control.now()
            self._control.apply(passage, flight.fail(error, now) if was_asked else flight.refused(error, now))
            return
        now = self._control.now()
        passage.record.admitted(now, in_grace=True)
        self._control.apply(passage, flight.admitted(identity, "", now))

    def _let_in(self, passage: Passage) -> Identity:
        identity = self.identify(passage.credential, passage.spec.priority)
        flight = passage.flight
        tokens = flight.prompt_tokens + max(0, flight.answer.tokens_left)
        if self._unbooked.is_full or not self._callers.take(identity.tenant_id, tokens):
            raise self._refusal("exhausted", "auth is away, and what it let this tenant spend meanwhile is spent")
        frame = frames.vouched(passage, identity.key_id)
        self._unbooked.let_in(flight.ticket_id, Entry(identity.tenant_id, tokens, frame))
        self._say(frame)
        self.admitted += 1
        _decisions.add(1, {"outcome": "admitted"})
        return identity

    def _refusal(self, outcome: str, why: str) -> Unavailable:
        self.refused += 1
        _decisions.add(1, {"outcome": outcome})
        return Unavailable(f"{why}; retry in {RETRY_AFTER:g} s", reason="AUTH_LOST", retry_after=RETRY_AFTER)

    # The timer.

    def _ran(self) -> float:
        return self._own_time.at(self._control.now())

    def _arm(self) -> None:
        if self._timer is None and self._silence.counts:
            often, left = self._step / 2, self._silence.due_at - self._ran()
            delay = left if 0 < left < often else often
            # Not on behalf of the request that happens to have asked last.
            self._timer = asyncio.get_running_loop().call_later(delay, self._look, context=Context())

    def _look(self) -> None:
        self._timer = None
        now = self._ran()
        self._silence.look(now)
        if self._silence.is_away(now) and not self._was_told:
            self._was_told = True
            log.warning("auth_away", silent_s=round(self._silence.lasted(now), 3))
            self._overdue()
        self._arm()
