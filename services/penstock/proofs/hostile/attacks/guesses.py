"""Guessed keys, and long prompts with a wrong key: work for the mesh before it knows the caller."""

import itertools
import secrets

from penstock.proofs.hostile.attacks.attack import AttackRun, Pace
from penstock.proofs.hostile.corpus.http_requests import JSON, MODELS
from penstock.proofs.hostile.ports import PortKind
from penstock.proofs.hostile.wire import http1
from penstock.proofs.hostile.wire.grpc_call import OK, call_headers, framed
from penstock.proofs.hostile.wire.http1 import STATUS_LINE
from penstock.proofs.hostile.wire.http2 import Headers, data_frame, header_block, headers_frame
from penstock.v1.inference_pb2 import GenerateRequest, ListModelsRequest

KEY_GUESSES = 2_000
GUESSES_PER_S = 700
BATCH = 35
PROMPT_BYTES = 60_000
PROMPTS_PER_S = 20
GUESSED_IDS = ("dev", "admin", "root", "test", "prod")


def guessed_key(number: int) -> str:
    return f"pk_{GUESSED_IDS[number % len(GUESSED_IDS)]}_{secrets.token_hex(16)}"


async def key_guesses(run: AttackRun) -> None:
    """Guess 2,000 keys, by gRPC or HTTP as the port needs."""
    numbers = itertools.count()
    guess_once = _guess_http if run.port.kind is PortKind.EDGE_HTTP else _guess_grpc

    async def guess(run: AttackRun) -> None:
        await guess_once(run, numbers)

    await run.repeat(guess)


async def _guess_grpc(run: AttackRun, numbers: "itertools.count[int]") -> None:
    path, message = "/penstock.v1.Inference/ListModels", framed(ListModelsRequest().SerializeToString())
    async with run.http2() as connection:
        pace = Pace(GUESSES_PER_S)
        while not connection.closed.is_set() and run.report.sent < KEY_GUESSES:
            batch = bytearray()
            for number in itertools.islice(numbers, BATCH):
                headers: Headers = [("authorization", f"Bearer {guessed_key(number)}")]
                stream = connection.next_stream()
                batch += headers_frame(stream, header_block(call_headers(path, headers)))
                batch += data_frame(stream, message, ends=True)
            await connection.send(run.count_sent(bytes(batch), BATCH))
            await pace.wait(BATCH)
        if not connection.closed.is_set():
            await run.hold()
        run.report.accepted += sum(each.header(b"grpc-status") == str(OK) for each in connection.answers.values())


async def _guess_http(run: AttackRun, numbers: "itertools.count[int]") -> None:
    async with run.tcp() as (reader, writer):
        pace = Pace(GUESSES_PER_S)
        while run.report.sent < KEY_GUESSES and not reader.at_eof():
            keys = [guessed_key(number) for number in itertools.islice(numbers, BATCH)]
            batch = b"".join(http1.request("GET", MODELS, [("Authorization", f"Bearer {key}")]) for key in keys)
            writer.write(run.count_sent(batch, BATCH))
            await writer.drain()
            await pace.wait(BATCH)
            received = await reader.read(1 << 20)
            run.report.accepted += sum(status.startswith(b"2") for status in STATUS_LINE.findall(received))
        run.report.cut += reader.at_eof()
        if not reader.at_eof():
            await run.hold()


async def long_prompts(run: AttackRun) -> None:
    """Send prompts of 60 KB with a wrong key."""
    numbers = itertools.count()
    send = _prompt_http if run.port.kind is PortKind.EDGE_HTTP else _prompt_grpc

    async def send_prompts(run: AttackRun) -> None:
        await send(run, numbers)

    await run.repeat(send_prompts)


async def _prompt_grpc(run: AttackRun, numbers: "itertools.count[int]") -> None:
    request = GenerateRequest(model=run.model, text="word " * (PROMPT_BYTES // 5), max_output_tokens=1)
    body = framed(request.SerializeToString())
    async with run.http2() as connection:
        pace = Pace(PROMPTS_PER_S)
        while not connection.closed.is_set():
            headers: Headers = [("authorization", f"Bearer {guessed_key(next(numbers))}")]
            stream = await connection.open_stream(call_headers("/penstock.v1.Inference/Generate", headers))
            await connection.send_data(stream, run.count_sent(body), ends=True)
            await pace.wait()


async def _prompt_http(run: AttackRun, numbers: "itertools.count[int]") -> None:
    body = b'{"model":"' + run.model.encode() + b'","prompt":"' + b"word " * (PROMPT_BYTES // 5) + b'"}'
    pace = Pace(PROMPTS_PER_S)
    while not run.is_over:
        key = ("Authorization", f"Bearer {guessed_key(next(numbers))}")
        sent = run.count_sent(http1.request("POST", "/v1/completions", [JSON, key], body))
        run.report.connections += 1
        result = await http1.exchange(run.port.endpoint, sent, timeout=max(0.1, min(3.0, run.left_s)))
        run.report.accepted += result.has_success
        await pace.wait()
