"""The listener for checks of proxies: HTTP/1.1, one check at a time on each connection.

A check has the method of the request, the headers that the proxy was told to send, and no body. An HTTP response costs
auth a fraction of a call of grpc.aio, and each request through a proxy waits for one.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import cast

import httptools
import structlog

from penstock.auth.ext_authz import answers
from penstock.auth.ext_authz.authorization import Authorization
from penstock.auth.identity.authenticator import SigningKeyPending
from penstock.chassis.errors import PermissionDenied
from penstock.chassis.security.credentials import http_context
from penstock.chassis.security.http_peers import check_proxy
from penstock.chassis.security.identity import IdentityInvalid
from penstock.chassis.security.process import LOCAL, ProcessSecurity
from penstock.chassis.server.server import advertised_address
from penstock.chassis.server.sockets import bind_socket

log = structlog.get_logger()

CHECK_PATH = b"/check"
HEALTH_PATH = b"/health"
MAX_HEAD_BYTES = 64 * 1024  # a proxy accepts requests with half of it
MAX_HEADERS = 64
MAX_CONNECTIONS = 4_096
HANDSHAKE_TIMEOUT_S = 5.0


@asynccontextmanager
async def serving_checks(
    listen: str, authorization: Authorization, security: ProcessSecurity = LOCAL
) -> AsyncIterator[str]:
    """Answer checks at host:port during the block, and yield the address. An empty `listen` serves nothing.

    With certificates, proxies alone are served. Raises OSError if `listen` cannot be bound, ConfigError if it would
    serve plaintext off loopback.
    """
    if not listen:
        yield ""
        return
    is_mutual = security.is_mutual(listen)
    if not is_mutual:
        security.check_plaintext(listen)
    bound = bind_socket(listen)
    connections: set[CheckConnection] = set()
    protocol = partial(
        CheckConnection, authorization, connections, trust_domain=security.trust_domain if is_mutual else None
    )
    server = await asyncio.get_running_loop().create_server(
        protocol,
        sock=bound,
        ssl=http_context(security.certificates) if is_mutual and security.certificates else None,
        ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if is_mutual else None,
    )
    address = advertised_address(listen, bound.getsockname()[1], "")
    log.info("checks_listening", address=address)
    try:
        yield address
    finally:
        server.close()
        for connection in list(connections):
            connection.close()


class CheckConnection(asyncio.Protocol):
    """A connection of a proxy. It is cut, before a request is read, if its certificate is of no proxy."""

    def __init__(
        self, authorization: Authorization, connections: "set[CheckConnection]", *, trust_domain: str | None
    ) -> None:
        self._authorization = authorization
        self._connections = connections
        self._trust_domain = trust_domain  # None: no certificate is expected
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._proxy = ""
        self._path = b""
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._later: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self._proxy = peer[0] if isinstance(peer, tuple) else ""
        self._connections.add(self)
        if len(self._connections) > MAX_CONNECTIONS:
            log.warning("checks_full", connections=MAX_CONNECTIONS)
            self._transport.abort()
            return
        try:
            if self._trust_domain is not None:
                check_proxy(self._transport, self._trust_domain)
        except (IdentityInvalid, PermissionDenied) as error:
            log.warning("http_peer_refused", because=str(error))
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        if self._later:
            self._later.cancel()

    def close(self) -> None:
        self._transport.close()

    def pause_writing(self) -> None:
        self._transport.pause_reading()  # no check is read from a proxy that does not read the answers

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(431)
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(400)

    # Callbacks of the parser; an error of one ends the parsing.

    def on_message_begin(self) -> None:
        self._path, self._headers = b"", {}
        if self._later:  # a proxy sends a check after the response to the one before
            self._refuse(400)

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        former = self._headers.get(key)
        self._headers[key] = text if former is None else f"{former},{text}"
        if len(self._headers) > MAX_HEADERS:
            self._refuse(431)

    def on_body(self, _body: bytes) -> None:
        self._refuse(413)

    def on_message_complete(self) -> None:
        if self._transport.is_closing():
            return
        self._head_bytes = 0
        if self._path == CHECK_PATH:
            self._answer(self._headers)
        else:
            self._transport.write(answers.plain(200 if self._path == HEALTH_PATH else 404))

    def _answer(self, headers: Mapping[str, str]) -> None:
        try:
            self._transport.write(self._authorization.answer(headers, self._proxy))
        except SigningKeyPending as pending:
            self._later = asyncio.get_running_loop().create_task(self._answer_later(headers, pending))

    async def _answer_later(self, headers: Mapping[str, str], pending: SigningKeyPending) -> None:
        self._transport.write(await self._authorization.answer_later(headers, self._proxy, pending))
        self._later = None

    def _refuse(self, status: int) -> None:
        """Answer a request that no proxy sends, and close the connection."""
        if not self._transport.is_closing():
            self._transport.write(answers.plain(status))
            self._transport.close()
