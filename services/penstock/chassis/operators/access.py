"""Authorization of operators: owners of the Unix socket, certificates of tier `operator`, and bearers of the token."""

import hashlib
import hmac
import os
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import grpc
import structlog

from penstock.chassis.addresses import source_of
from penstock.chassis.config import ConfigError
from penstock.chassis.errors import Overloaded, PenstockError, PermissionDenied
from penstock.chassis.operators.throttle import FailureThrottle, RefusalReport
from penstock.chassis.security.identity import PeerIdentity, peer_identity
from penstock.chassis.server.interceptors import Body, Context, Continuation, guarded

log = structlog.get_logger()

UNIX_PREFIX = "unix:"
OPERATOR_TIER = "operator"

current_actor: ContextVar[str] = ContextVar("current_actor", default="unknown")


class Refusal(NamedTuple):
    """One refused call."""

    actor: str  # the tier and name of its certificate, or `unknown`
    peer: str
    method: str
    error: PenstockError


ReportRefusals = Callable[[Refusal, int], None]  # the last refusal, and the number of refusals since the last report


def check_protected(listen: str, *, token: str, is_tls: bool) -> None:
    """Raise ConfigError if nothing would distinguish an operator from another caller of `listen`.

    Loopback is not enough: a sidecar, a forwarder or another user of the host is on loopback, too.
    """
    if listen.startswith(UNIX_PREFIX) or token or is_tls:
        return
    raise ConfigError(
        f"admin_listen {listen} would serve every caller: set PENSTOCK_ADMIN_TOKEN, or certificates with"
        " PENSTOCK_TLS_CERTIFICATE, or listen on a socket of this user with admin_listen unix:PATH"
    )


@dataclass
class OperatorAccess:
    """Decides for each call on one listener whether its caller is an operator. Pure: `now` is passed in."""

    is_unix: bool  # the mode of the socket admits its owner alone
    token: str = ""
    trust_domain: str = ""  # of operators' certificates; empty: any that the authority has signed
    refused: int = 0
    throttled: int = 0
    throttle: FailureThrottle = field(default_factory=FailureThrottle)

    def authorize(self, peer: str, authorization: str, certificate: PeerIdentity | None, now: float) -> str:
        """Return the actor of the call.

        Raises PermissionDenied / ADMIN_ONLY, or Overloaded / ADMIN_THROTTLED after several failures of the peer's host.
        A throttled peer is refused also with the right token; otherwise it could go on with its guesses.
        """
        if self.is_unix:
            return f"unix:{os.getuid()}"
        if certificate and self._is_operator(certificate):
            return f"operator:{certificate.instance_id}"
        host = source_of(peer) or peer
        if delay := self.throttle.delay(host, now):
            self.throttled += 1
            text = f"too many attempts without the token of PENSTOCK_ADMIN_TOKEN; retry in {delay:.1f} s"
            raise Overloaded(text, reason="ADMIN_THROTTLED", retry_after=delay)
        if self._is_token(authorization):
            return "token"
        self.refused += 1
        self.throttle.record_failure(host, now)
        raise PermissionDenied(self._denial(), reason="ADMIN_ONLY")

    def _is_operator(self, certificate: PeerIdentity) -> bool:
        is_of_mesh = not self.trust_domain or certificate.trust_domain == self.trust_domain
        return is_of_mesh and certificate.tier == OPERATOR_TIER

    def figures(self) -> dict[str, float]:
        return {"admin_refused": self.refused, "admin_throttled": self.throttled}

    def _is_token(self, authorization: str) -> bool:
        if not self.token:
            return False
        shown, expected = (hashlib.sha256(each.encode()).digest() for each in (authorization, f"Bearer {self.token}"))
        return hmac.compare_digest(shown, expected)

    def _denial(self) -> str:
        if self.token:
            return "send metadata `authorization: Bearer TOKEN` with the token of PENSTOCK_ADMIN_TOKEN"
        return "only a certificate of tier `operator` is served here; make one with `penstock certs`"


@dataclass
class OperatorInterceptor(grpc.aio.ServerInterceptor):
    """Admits operators alone to every method of a listener, and sets `current_actor` for the call."""

    access: OperatorAccess
    report: ReportRefusals
    _refusals: RefusalReport = field(default_factory=RefusalReport)
    _last: Refusal | None = None

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method.removeprefix("/")

        async def guard(context: Context, body: Body) -> Any:
            self._authorize(method, context)
            return await body()

        return guarded(handler, guard)

    def report_rest(self) -> None:
        """Report the refusals that no report has had, as the listener closes."""
        if self._last and (count := self._refusals.take()):
            self._report(self._last, count)

    def _authorize(self, method: str, context: Context) -> None:
        now, peer = time.monotonic(), context.peer()
        certificate: PeerIdentity | None = None
        shown = dict(context.invocation_metadata() or ()).get("authorization", "")
        try:
            certificate = peer_identity(context)
            current_actor.set(self.access.authorize(peer, str(shown), certificate, now))
        except PenstockError as error:
            actor = f"{certificate.tier}:{certificate.instance_id}" if certificate else "unknown"
            self._last = Refusal(actor, peer, method, error)
            if count := self._refusals.record(now):
                self._report(self._last, count)
            raise

    def _report(self, last: Refusal, count: int) -> None:
        reason = last.error.reason
        log.warning("admin_refused", peer=last.peer, method=last.method, actor=last.actor, reason=reason, count=count)
        self.report(last, count)
