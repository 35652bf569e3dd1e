"""TCP sockets of servers that are not gRPC's."""

import socket

# Longest time for which a peer may leave sent bytes unacknowledged before its connection counts as dead.
TCP_USER_TIMEOUT_MS = 30_000
LISTEN_BACKLOG = 2_048  # connections that are not accepted yet


def bind_socket(listen: str) -> socket.socket:
    """Return a listening socket at host:port that does not block. Raises OSError if it cannot be bound."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.create_server((host, int(port)), family=family, backlog=LISTEN_BACKLOG)
    bound.setblocking(False)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; accepted connections inherit it
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_MS)
    return bound
