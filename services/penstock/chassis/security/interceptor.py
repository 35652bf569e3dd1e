"""Server interceptor: refuses calls of peers whose tier may not call the RPC, and of other trust domains.

A connection without a certificate is that of a client at the development door, or a unix socket of this user.
"""

from dataclasses import dataclass, field
from typing import Any

import grpc

from penstock.chassis.errors import PermissionDenied
from penstock.chassis.security.identity import PeerIdentity, peer_identity
from penstock.chassis.security.permissions import callers_of, is_allowed, is_public
from penstock.chassis.server.interceptors import Body, Context, Continuation, guarded


def check_call(peer: PeerIdentity, method: str, trust_domain: str) -> None:
    """Raise PermissionDenied / TRUST_DOMAIN or PEER_NOT_ALLOWED unless `peer` may call `method`."""
    check_trust_domain(peer, trust_domain)
    if not is_allowed(peer.tier, method):
        allowed = ", ".join(sorted(callers_of(method))) or "no tier"
        text = f"a process of tier {peer.tier} ({peer.instance_id}) may not call {method}; allowed: {allowed}"
        raise PermissionDenied(text, reason="PEER_NOT_ALLOWED")


def check_trust_domain(peer: PeerIdentity, trust_domain: str) -> None:
    if peer.trust_domain != trust_domain:
        text = f"the caller is of trust domain {peer.trust_domain}, this process of {trust_domain}"
        raise PermissionDenied(f"{text}; set PENSTOCK_TRUST_DOMAIN alike in one mesh", reason="TRUST_DOMAIN")


def check_door(peer: str, method: str) -> None:
    """Raise PermissionDenied / PEER_UNIDENTIFIED for a call of `peer` over plaintext that is for tiers alone.

    peer: address of the caller, as of gRPC.
    """
    if not peer.startswith("unix:") and not is_public(method):
        text = f"{method} is for processes that present a certificate; use the address of the edge that requires one"
        raise PermissionDenied(text, reason="PEER_UNIDENTIFIED")


@dataclass(frozen=True)
class PeerInterceptor(grpc.aio.ServerInterceptor):
    """Checks each call by the certificate of its connection. Which ports need none is decided when a port is bound."""

    trust_domain: str
    _guarded: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # by method: the handler, and the guarded one

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method.removeprefix("/")
        known, guarded_handler = self._guarded.get(method, (None, None))
        if known is not handler:
            guarded_handler = self._with_guard(method, handler)
            self._guarded[method] = handler, guarded_handler
        return guarded_handler

    def _with_guard(self, method: str, handler: Any) -> Any:
        async def guard(context: Context, body: Body) -> Any:
            if (peer := peer_identity(context)) is not None:
                check_call(peer, method, self.trust_domain)
            else:
                check_door(context.peer(), method)
            return await body()

        return guarded(handler, guard)
