"""A TCP relay to a PostgreSQL server that loses replies, holds requests back, cuts connections and refuses them."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from penstock.local_mesh.postgres import SOCKET_NAME


@dataclass(eq=False)
class PostgresRelay:
    """Forwards each connection to the server's socket, unless it is told otherwise."""

    socket: str
    port: int = 0
    loses_replies: bool = False
    holds_requests: bool = False
    keeps_clients: bool = False  # leave a connection open that the server has closed
    refuses: bool = False
    held: list = field(default_factory=list)  # pairs of a writer to the server and bytes
    _clients: list = field(default_factory=list)
    _writers: list = field(default_factory=list)
    _left: list = field(default_factory=list)  # writers to the server of held requests, whose clients have left
    _tasks: set = field(default_factory=set)

    def url(self, database):
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    async def accept(self, reader, writer):
        if self.refuses:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            replies, server = await asyncio.open_unix_connection(self.socket)
            self._writers += [writer, server]
            self._clients.append(writer)
            await asyncio.gather(self._requests(reader, server), self._replies(replies, writer))
        except asyncio.CancelledError:
            pass  # the block has ended
        finally:
            self._tasks.discard(task)

    async def _requests(self, reader, server):
        while data := await _read(reader):
            if self.holds_requests:
                self.held.append((server, data))
            else:
                server.write(data)
        if any(writer is server for writer, _ in self.held):
            self._left.append(server)
        else:
            server.close()

    async def _replies(self, reader, client):
        while data := await _read(reader):
            if not self.loses_replies and not client.is_closing():
                client.write(data)
        if not self.keeps_clients:
            client.close()

    def cut(self):
        """Cut the connections of clients. Those whose requests are held stay open at the server."""
        for each in self._clients:
            each.transport.abort()
        self._clients.clear()

    async def release(self):
        """Send the held requests to the server, which sees that its clients have left only afterwards."""
        for server, data in self.held:
            server.write(data)
        for server in self._left:
            server.write_eof()
        self.held.clear()

    async def close(self):
        for each in self._writers:
            each.transport.abort()
        for each in [*self._tasks]:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in a callback


async def _read(reader):
    try:
        return await reader.read(65_536)
    except ConnectionError:
        return b""


@asynccontextmanager
async def postgres_relay(server):
    """Relay to a local server."""
    relay = PostgresRelay(str(server.home / SOCKET_NAME))
    listening = await asyncio.start_server(relay.accept, "127.0.0.1", 0)
    relay.port = listening.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        listening.close()
        await listening.wait_closed()
        await relay.close()
