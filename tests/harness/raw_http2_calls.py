"""A client of raw HTTP/2 frames, for what a gRPC client does not do."""

import asyncio
from contextlib import asynccontextmanager, suppress

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded, StreamReset, TrailersReceived, WindowUpdated

TIMEOUT_S = 30.0


class RawConnection:
    """One connection. `pump` exchanges frames until a condition holds."""

    def __init__(self, reader, writer):
        self._reader = reader
        self._writer = writer
        self.h2 = H2Connection(H2Configuration(client_side=True, validate_outbound_headers=False))
        self.headers = {}  # of responses and trailers, by stream
        self.ended = set()
        self.is_closed = False
        self.granted_bytes = 0

    def call(self, method="/penstock.v1.Inference/Generate", metadata=()):
        """Begin a call. Returns its stream."""
        stream = self.h2.get_next_available_stream_id()
        named = [(":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "e")]
        self.h2.send_headers(stream, [*named, ("content-type", "application/grpc"), ("te", "trailers"), *metadata])
        return stream

    def send(self, stream, data):
        """Send as much of `data` as flow control allows. Returns the bytes sent."""
        sent = 0
        while sent < len(data) and stream not in self.ended:
            size = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size, len(data) - sent)
            if size <= 0:
                break
            self.h2.send_data(stream, data[sent : sent + size])
            sent += size
        return sent

    async def flush(self):
        self._writer.write(self.h2.data_to_send())
        with suppress(ConnectionError):
            await self._writer.drain()

    async def pump(self, until):
        async with asyncio.timeout(TIMEOUT_S):
            while not (until() or self.is_closed):
                await self.pump_once()

    async def pump_once(self):
        await self.flush()
        try:
            data = await self._reader.read(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            self.is_closed = True
            return
        for event in self.h2.receive_data(data):
            match event:
                case ResponseReceived() | TrailersReceived():
                    self.headers.setdefault(event.stream_id, {}).update(
                        (_text(name), _text(value)) for name, value in event.headers
                    )
                case StreamEnded() | StreamReset():
                    self.ended.add(event.stream_id)
                case DataReceived():
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                case WindowUpdated():
                    self.granted_bytes += event.delta
        await self.flush()

    def status(self, stream):
        return int(self.headers[stream]["grpc-status"])

    @property
    def streams_allowed(self):
        return self.h2.remote_settings.max_concurrent_streams


def _text(value):
    return value.decode() if isinstance(value, bytes) else value


@asynccontextmanager
async def raw_connection(address):
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    connection = RawConnection(reader, writer)
    connection.h2.initiate_connection()
    await connection.pump_once()
    try:
        yield connection
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()
