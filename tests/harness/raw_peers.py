"""Servers that record what raw clients really send, and the ports and targets that point to them."""

import asyncio
from contextlib import asynccontextmanager, suppress

from hyperframe.frame import SettingsFrame, WindowUpdateFrame

from penstock.proofs.hostile.attacks.attack import AttackRun
from penstock.proofs.hostile.ports import Port, PortKind
from penstock.proofs.hostile.target import HostileTarget
from penstock.proofs.hostile.wire.http2 import DATA, FRAME_HEADER_BYTES, PREFACE

KEY = "pk_dev_0123456789abcdef0123456789abcdef"
DOORS = (PortKind.EDGE_GRPC, PortKind.EDGE_HTTP, PortKind.FRONT)


class RecordingServer:
    """Reads bytes, or frames after the preface of HTTP/2, and answers nothing but its settings."""

    def __init__(self, *, speaks_http2, cuts_after=0):
        self.frames = []  # (type, flags, stream, payload) of each frame; of data, the length instead
        self.received = bytearray()  # without HTTP/2
        self.connections = 0
        self.handlers = set()  # tasks of open connections
        self._speaks_http2 = speaks_http2
        self._cuts_after = cuts_after  # frames of one connection; 0: never

    def count(self, kind):
        return sum(frame[0] == kind for frame in self.frames)

    async def serve(self, reader, writer):
        self.connections += 1
        self.handlers.add(asyncio.current_task())
        with suppress(OSError, asyncio.IncompleteReadError):
            if self._speaks_http2:
                await self._read_frames(reader, writer)
            else:
                while chunk := await reader.read(1 << 16):
                    self.received += chunk
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()

    async def _read_frames(self, reader, writer):
        assert await reader.readexactly(len(PREFACE)) == PREFACE
        writer.write(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 1 << 24}).serialize())
        writer.write(WindowUpdateFrame(0, window_increment=1 << 30).serialize())
        read = 0
        while not self._cuts_after or read < self._cuts_after:
            head = await reader.readexactly(FRAME_HEADER_BYTES)
            payload = await reader.readexactly(int.from_bytes(head[:3]))
            shown = len(payload) if head[3] == DATA else payload
            self.frames.append((head[3], head[4], int.from_bytes(head[5:]), shown))
            read += 1


@asynccontextmanager
async def recording_server(kind=PortKind.EDGE_GRPC, *, speaks_http2=True, cuts_after=0):
    """Yield a recorder and the port that it listens on."""
    recorder = RecordingServer(speaks_http2=speaks_http2, cuts_after=cuts_after)
    server = await asyncio.start_server(recorder.serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield recorder, Port(kind, "recorder", address)
    finally:
        server.close()
        await asyncio.gather(*recorder.handlers)


def attack_run(port, seconds=0.4, **given):
    return AttackRun(port=port, api_key=KEY, model="tiny", seconds=seconds, **given)


def example_target(kinds=tuple(PortKind), **given):
    ports = [Port(kind, str(kind), f"127.0.0.1:{9_000 + number}") for number, kind in enumerate(kinds)]
    return HostileTarget(ports=ports, api_key=KEY, model="tiny", **given)
