"""Connections that stay: silent ones, half request headers, and bodies that arrive a byte at a time."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from penstock.proofs.hostile.attacks.attack import AttackOver, AttackRun, Pace
from penstock.proofs.hostile.corpus.http_requests import COMPLETIONS
from penstock.proofs.hostile.wire import CONNECTION_ERRORS

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

SILENT_CONNECTIONS = 100
HALF_HEADERS = 50
LARGE_BODIES = 16
LARGE_BODY_BYTES = (16 << 20) - 10  # sent of 16 MiB
SMALL_BODIES = 40
PIECE_BYTES = 1 << 20
SENT_PER_S = 128 << 20  # bytes
BYTE_INTERVAL_S = 0.5  # s between two bytes of a slow body
HELD = "connections held to the end"


async def silent_connections(run: AttackRun) -> None:
    """Connect and send nothing."""
    await _hold_connections(run, [b""] * SILENT_CONNECTIONS, trickle=b"")


async def half_headers(run: AttackRun) -> None:
    """Send the beginning of a request and then a byte of a header at times (Slowloris)."""
    half = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nX-Slow: ".encode()
    await _hold_connections(run, [half] * HALF_HEADERS, trickle=b"a")


async def slow_bodies(run: AttackRun) -> None:
    """Announce bodies of 16 MiB and send all but 10 bytes; beside them, send small bodies a byte at a time."""
    large, small = _head(16 << 20) + bytes(LARGE_BODY_BYTES), _head(4_096) + b"{"
    await _hold_connections(run, [large] * LARGE_BODIES + [small] * SMALL_BODIES, trickle=b" ")


def _head(length: int) -> bytes:
    lines = (f"POST {COMPLETIONS} HTTP/1.1", "Host: localhost", "Content-Type: application/json")
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()


async def _hold_connections(run: AttackRun, firsts: Sequence[bytes], *, trickle: bytes) -> None:
    """Open a connection for each of `firsts`, send it, and then `trickle` at intervals until the run is over."""
    pace, run.report.findings[HELD] = Pace(SENT_PER_S), 0
    async with asyncio.TaskGroup() as group:
        for first in firsts:
            group.create_task(_hold_connection(run, first, trickle, pace))


async def _hold_connection(run: AttackRun, first: bytes, trickle: bytes, pace: Pace) -> None:
    with suppress(AttackOver, *CONNECTION_ERRORS):
        async with run.tcp() as connection:
            reader, writer = connection
            with suppress(*CONNECTION_ERRORS):
                await _send_first(run, writer, first, pace)
                while not (run.is_over or reader.at_eof() or writer.is_closing()):
                    if trickle:
                        writer.write(trickle)
                        run.report.sent += 1
                    await asyncio.sleep(min(BYTE_INTERVAL_S, run.left_s))
            is_closed = await _is_closed(connection)
            run.report.cut += is_closed
            run.report.findings[HELD] += not is_closed


async def _send_first(run: AttackRun, writer: asyncio.StreamWriter, first: bytes, pace: Pace) -> None:
    for start in range(0, len(first), PIECE_BYTES):
        if run.is_over:
            return
        piece = first[start : start + PIECE_BYTES]
        await pace.wait(len(piece))
        writer.write(run.count_sent(piece))
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.01, run.left_s)):  # a server that does not read holds the piece up
                await writer.drain()


async def _is_closed(connection: Connection) -> bool:
    """Whether the server has closed a connection, after what it sent before."""
    reader, _ = connection
    try:
        async with asyncio.timeout(0.01):
            while await reader.read(1 << 16):
                pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True
