"""The server's end of one connection."""

from typing import Any, Protocol

from penstock.chassis.http2 import frames
from penstock.chassis.http2.connection import Connection
from penstock.chassis.http2.frames import ErrorCode
from penstock.chassis.http2.limits import Http2Limits
from penstock.chassis.http2.stream import Stream

MAX_IDLE_SWEEPS = 15  # of a connection without calls; clients connect again for their next call


class Listener(Protocol):
    """The server of a connection."""

    @property
    def limits(self) -> Http2Limits: ...

    @property
    def connections(self) -> "set[ServerConnection]": ...

    def on_connected(self, connection: "ServerConnection") -> bool:
        """Return False if there are too many connections."""

    def on_disconnected(self, connection: "ServerConnection") -> None: ...

    def on_request(self, connection: "ServerConnection", stream: Stream) -> None: ...


class ServerConnection(Connection):
    """The server's end of one connection."""

    def __init__(self, server: Listener) -> None:
        super().__init__(server.limits, is_client=False)
        self._server = server
        self._idle_sweeps = 0
        self._is_pinged = False
        self._partial_since = -1  # highest stream at the last sweep, if headers were not complete then

    def connection_made(self, transport: Any) -> None:
        self.peer = _peer_of(transport.get_extra_info("peername"))
        if connection := transport.get_extra_info("ssl_object"):
            names = (connection.getpeercert() or {}).get("subjectAltName", ())
            uris = [value.encode() for kind, value in names if kind == "URI"]
            self.auth_context = {
                "transport_security_type": [b"ssl"],
                "peer_spiffe_id": uris if len(uris) == 1 else [],
            }
        if self._server.on_connected(self):
            super().connection_made(transport)
        else:
            self.lost = "refused"
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._server.on_disconnected(self)

    def sweep(self) -> None:
        """Close the connection if its client is silent, or does not complete its headers. Called once in an interval.

        A client without calls is told first, so that it makes its next call on another connection.
        """
        self._idle_sweeps = 0 if self.streams else self._idle_sweeps + 1
        if self._is_silent() or self._is_stuck():
            self.close("the client is silent, or does not complete its headers")
        elif self.is_going_away and not self.streams:
            self.close("the client makes no calls")
        elif self._idle_sweeps > MAX_IDLE_SWEEPS:
            self.send_go_away()

    def on_request(self, stream: Stream) -> None:
        self._server.on_request(self, stream)

    def on_closed(self) -> None:
        self._server.connections.discard(self)

    def _is_stuck(self) -> bool:
        """Whether headers were incomplete at the last call, and the same ones still are."""
        before, self._partial_since = self._partial_since, self.highest_stream if self.has_partial_headers else -1
        return before == self._partial_since >= 0

    def _is_silent(self) -> bool:
        """Whether the peer has sent nothing since the last call, and has not answered a ping sent then."""
        if self.has_received:
            self.has_received = self._is_pinged = False
            return False
        if self._is_pinged:
            return True
        self._is_pinged = True
        self.write(frames.frame(frames.PING, 0, 0, bytes(frames.PING_BYTES)))
        self.flush()
        return False

    def send_go_away(self) -> None:
        """Tell the peer to open no more streams. Those that are open go on."""
        if not (self.lost or self.is_going_away) and self.transport:
            self.is_going_away = True
            self.write(frames.go_away(self.highest_stream, ErrorCode.NO_ERROR))
            self.flush()


def _peer_of(name: Any) -> str:
    if not isinstance(name, tuple):
        return "unix:"
    host, port = name[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
