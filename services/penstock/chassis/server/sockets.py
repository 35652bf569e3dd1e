"""TCP sockets of servers."""

import socket

# Longest time for which a peer may leave sent bytes unacknowledged before its connection counts as dead.
TCP_USER_TIMEOUT_MS = 30_000
LISTEN_BACKLOG = 2_048  # connections that are not accepted yet


def bind_socket(listen: str, *, reuses_port: bool = False) -> socket.socket:
    """Return a listening socket at host:port that does not block. Raises OSError if it cannot be bound.

    All sockets with `reuses_port` may listen on one port; the kernel gives each new connection to one of them.
    """
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.create_server((host, int(port)), family=family, backlog=LISTEN_BACKLOG, reuse_port=reuses_port)
    bound.setblocking(False)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; accepted connections inherit it
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_MS)
    return bound
