"""The HTTP door of proxies: connections with mutual TLS, and only of peers whose certificate is of tier envoy."""

import asyncio
from functools import partial
from typing import Any

import structlog

from penstock.chassis.errors import PermissionDenied
from penstock.chassis.security.credentials import http_context
from penstock.chassis.security.http_peers import check_proxy
from penstock.chassis.security.identity import IdentityInvalid
from penstock.chassis.security.process import ProcessSecurity
from penstock.edge.api.http.protocol import BoundedHttpProtocol, HttpDoor

log = structlog.get_logger()

VIA_PROXY = "via_proxy"  # in the ASGI scope's `state`: whether the request came over a connection of a proxy


def protocol_options(security: ProcessSecurity, door: HttpDoor) -> dict[str, Any]:
    """Return the options of uvicorn for the protocol of a listener within the limits of `door`."""
    if security.certificates is None:
        return {"http": door.protocol}
    context = http_context(security.certificates)
    return {
        "http": partial(ProxyProtocol, door=door, trust_domain=security.trust_domain),
        "ssl_context_factory": lambda _config, _default: context,
    }


def is_via_proxy(scope: Any) -> bool:
    """Whether the request of this ASGI scope came through an Envoy that has identified itself by its certificate."""
    return bool(scope.get("state", {}).get(VIA_PROXY, False))


class ProxyProtocol(BoundedHttpProtocol):
    """A connection of a proxy. It is cut, before a request is read, if the certificate is not of a proxy."""

    def __init__(self, *args: Any, trust_domain: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._trust_domain = trust_domain
        self._is_refused = False
        self.app_state = {**self.app_state, VIA_PROXY: True}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base class
        super().connection_made(transport)
        try:
            check_proxy(transport, self._trust_domain)
        except (IdentityInvalid, PermissionDenied) as error:
            self._is_refused = True
            log.warning("http_peer_refused", because=str(error))
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if not self._is_refused:  # bytes that arrived with the handshake
            super().data_received(data)
