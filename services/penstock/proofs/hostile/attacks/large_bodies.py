"""Bodies that cost more to read than to send: JSON bombs, and a text of 4 MiB whose client leaves at once."""

from collections.abc import Sequence

import orjson

from penstock.proofs.hostile.attacks.attack import AttackRun, Pace
from penstock.proofs.hostile.corpus.http_requests import CHAT, COMPLETIONS, JSON
from penstock.proofs.hostile.wire import http1
from penstock.proofs.hostile.wire.grpc_call import call_headers, framed
from penstock.proofs.hostile.wire.http2 import reset_frame
from penstock.v1.inference_pb2 import GenerateRequest

BODY_BYTES = (16 << 20) - 1024
BOMBS_PER_S = 2.0
DEEP = 1 << 20  # nested arrays
DIGITS = 1 << 20  # of one number
KEY_BYTES = 1 << 22
MESSAGES = 4_096
TEXT_BYTES = 4_000_000  # just within the limit of a text
TEXTS_PER_S = 1.0
ANSWER_TIMEOUT_S = 10.0  # s

Header = tuple[str, str]


def json_bombs(body_bytes: int = BODY_BYTES) -> list[bytes]:
    """Return bodies that are valid JSON, or nearly, with many elements, levels, digits or characters of a key."""
    return [
        b"[" + b"[]," * (body_bytes // 3 - 1) + b"[]]",
        b"[" * DEEP + b"]" * DEEP,
        b'{"n":' + b"9" * DIGITS + b"}",
        b'{"' + b"k" * KEY_BYTES + b'":1}',
        b'{"a":{}' + b',"a":{}' * (body_bytes // 8 - 1) + b"}",
        orjson.dumps({"messages": [{"role": "user", "content": "word " * 10}] * MESSAGES}),
    ]


async def json_arrays(run: AttackRun) -> None:
    """Send 16 MiB of empty arrays, without a key."""
    await _send_bodies(run, [json_bombs()[0]], COMPLETIONS, [JSON])


async def json_variants(run: AttackRun) -> None:
    """Send each kind of bomb in turn, without a key."""
    await _send_bodies(run, json_bombs(), CHAT, [JSON])


async def json_bombs_with_key(run: AttackRun) -> None:
    """Send each kind of bomb in turn as a tenant."""
    await _send_bodies(run, json_bombs(), CHAT, [JSON, ("Authorization", f"Bearer {run.api_key}")])


async def _send_bodies(run: AttackRun, bodies: Sequence[bytes], path: str, headers: Sequence[Header]) -> None:
    pace = Pace(BOMBS_PER_S)
    requests = [http1.request("POST", path, headers, body) for body in bodies]

    async def send_all(run: AttackRun) -> None:
        for sent in requests:
            run.count_sent(sent)
            run.report.connections += 1
            timeout = min(ANSWER_TIMEOUT_S, run.left_s)
            result = await http1.exchange(run.port.endpoint, sent, timeout=timeout)
            run.report.accepted += result.has_success
            run.report.cut += result.was_refused
            await pace.wait()

    await run.repeat(send_all)


async def text_and_leave(run: AttackRun) -> None:
    """Send a text of 4 MB as a tenant, and cancel the call as soon as it is sent."""
    request = GenerateRequest(model=run.model, text="word " * (TEXT_BYTES // 5), max_output_tokens=1)
    body = framed(request.SerializeToString())
    headers = call_headers("/penstock.v1.Inference/Generate", [("authorization", f"Bearer {run.api_key}")])

    async def leave_repeatedly(run: AttackRun) -> None:
        async with run.http2() as connection:
            pace = Pace(TEXTS_PER_S)
            while not connection.closed.is_set():
                stream = await connection.open_stream(headers)
                await connection.send_data(stream, run.count_sent(body), ends=True)
                await connection.send(reset_frame(stream))
                await pace.wait()

    await run.repeat(leave_repeatedly)
