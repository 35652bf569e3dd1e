"""Keeps the network thread of `grpc.aio` from blocking while the event loop is busy.

The thread that polls the sockets of all streams writes one byte to a socket pair for each event, and the loop reads one
byte per iteration, in which it handles all events. If iterations take long and have many events, the pair is full after
about 280 bytes. The thread then blocks in its write, and nothing reads the sockets or answers pings any more: peers
take the process for dead, connect again, and so keep it busy. As the bytes only wake the loop, the thread may drop a
byte while others are unread. With a write end that does not block, it does.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc


@contextmanager
def unblocked_poller() -> Iterator[None]:
    """Run `grpc.aio` with a poller whose writes do not block, until the block ends.

    Enter it on the loop that will use gRPC, before any channel or server is made; later it changes nothing. `grpc.aio`
    offers no access to its socket pair, so that its creation by this thread is intercepted.
    """
    create, thread = socket.socketpair, threading.get_ident()

    def create_unblocked(*args: Any, **options: Any) -> tuple[socket.socket, socket.socket]:
        reader, writer = create(*args, **options)
        if threading.get_ident() == thread:
            writer.setblocking(False)
        return reader, writer

    socket.socketpair = create_unblocked
    try:
        grpc.aio.init_grpc_aio()
    finally:
        socket.socketpair = create
    try:
        yield
    finally:
        grpc.aio.shutdown_grpc_aio()
