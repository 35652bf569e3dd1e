"""Keeps the network thread of `grpc.aio` from blocking while the event loop is busy.

The thread that polls the sockets of all streams writes one byte to a socket pair for each event, and the loop reads one
byte per iteration, in which it handles all events. If iterations take long and have many events, the pair is full after
about 280 bytes. The thread then blocks in its write, and nothing reads the sockets or answers pings any more: peers
take the process for dead, connect again, and so keep it busy. As the bytes only wake the loop, the thread may drop a
byte while others are unread. With a write end that does not block, it does.
"""

import socket
import threading
from typing import Any

import grpc

_lock = threading.Lock()
_is_done = False


def unblock_poller() -> None:
    """Start `grpc.aio` with a poller whose writes do not block, unless it runs already. Call it before using gRPC.

    `grpc.aio` offers no access to its socket pair, so that its creation is intercepted. It then runs until the process
    ends. If the application has started it before, nothing changes.
    """
    global _is_done  # noqa: PLW0603  # as is the poller of `grpc.aio`
    with _lock:
        if not _is_done:
            _is_done = _start()


def _start() -> bool:
    """Return whether a poller was created."""
    create, created = socket.socketpair, list[socket.socket]()

    def create_unblocked(*args: Any, **options: Any) -> tuple[socket.socket, socket.socket]:
        reader, writer = create(*args, **options)
        writer.setblocking(False)
        created.append(writer)
        return reader, writer

    socket.socketpair = create_unblocked
    try:
        grpc.aio.init_grpc_aio()
    finally:
        socket.socketpair = create
    if not created:
        grpc.aio.shutdown_grpc_aio()  # the poller of the application goes on, as it counts its users
    return bool(created)
