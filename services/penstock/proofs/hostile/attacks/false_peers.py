"""False processes that last: an edge that vouches for keys, a worker that takes prompts, and open inner ports."""

import asyncio
from contextlib import suppress

from penstock.chassis.streams.protocol import hello_of
from penstock.mesh.v1.admission_pb2 import AdmitRequest, FallbackAdmission, Reserve
from penstock.mesh.v1.scheduler_pb2 import AttachRequest, LoadReport, Profile
from penstock.mesh.v1.worker_pb2 import GetModelCardResponse, ModelCard
from penstock.proofs.hostile.attacks.attack import AttackRun, Pace
from penstock.proofs.hostile.corpus.tier_streams import ADMIT, TIER_STREAMS
from penstock.proofs.hostile.ports import PortKind
from penstock.proofs.hostile.wire.grpc_call import call, call_headers, framed, messages_of
from penstock.v1.stream_pb2 import Heartbeat

VOUCHERS = 2_000
VOUCHERS_PER_S = 700
BATCH = 35
ATTACH = TIER_STREAMS[3]
FRAME_INTERVAL_S = 0.3  # s between two frames of a false worker, which would count as silent otherwise
NOWHERE = "127.0.0.1:9"  # address of the false worker; the discard port, on which nothing listens
CARD_PATH = "/penstock.mesh.v1.WorkerService/GetModelCard"


async def vouch_guesses(run: AttackRun) -> None:
    """Say hello as an edge and reserve tokens for guessed key ids, as if auth had been unreachable."""

    async def guess_once(run: AttackRun) -> None:
        async with run.http2() as connection:
            stream = await connection.open_stream(call_headers(ADMIT.path))
            await connection.send_data(stream, run.count_sent(ADMIT.hello("edge", "intruder")))
            answer, pace = connection.answers[stream], Pace(VOUCHERS_PER_S)
            while not connection.closed.is_set() and not answer.has_ended and run.report.sent < VOUCHERS:
                batch = b"".join(framed(_voucher(run.report.sent + each)) for each in range(BATCH))
                await connection.send_data(stream, run.count_sent(batch, BATCH))
                await pace.wait(BATCH)
                run.report.accepted += sum("admitted" in ADMIT.kinds_of((each,)) for each in messages_of(answer.data))
                answer.data.clear()

    await run.repeat(guess_once)


def _voucher(number: int) -> bytes:
    fallback = FallbackAdmission(key_id="dev" if number % 2 else f"key-{number}")
    request = Reserve(request_id=f"vouch-{number}", prompt_tokens=1, max_output_tokens=1, fallback_admission=fallback)
    return AdmitRequest(reserve=request).SerializeToString()


async def false_worker(run: AttackRun) -> None:
    """Attach to a scheduler with the card of the true worker, report a fast engine, and count the leases."""
    card = await _card(run)

    async def attach_once(run: AttackRun) -> None:
        async with run.http2() as connection:
            stream = await connection.open_stream(call_headers(ATTACH.path))
            hello = AttachRequest(hello=hello_of("worker", "intruder"))
            hello.hello.address = NOWHERE
            profile = AttachRequest(profile=_profile(card))
            for frame in (hello, profile):
                await connection.send_data(stream, run.count_sent(framed(frame.SerializeToString())))
            answer = connection.answers[stream]
            while not connection.closed.is_set() and not answer.has_ended and not run.is_over:
                for frame in (_report(), AttachRequest(heartbeat=Heartbeat())):
                    await connection.send_data(stream, run.count_sent(framed(frame.SerializeToString())))
                await asyncio.sleep(min(FRAME_INTERVAL_S, run.left_s))
                run.report.accepted += sum("expect" in ATTACH.kinds_of((each,)) for each in messages_of(answer.data))
                answer.data.clear()

    await run.repeat(attach_once)


async def _card(run: AttackRun) -> ModelCard:
    """Return the true worker's card, or one of the right name only if the worker refuses it."""
    with suppress(OSError, KeyError):
        result = await call(run.ports[PortKind.WORKER].endpoint, CARD_PATH, framed(b""), timeout=3.0)
        if result.messages:
            return GetModelCardResponse.FromString(result.messages[0]).card
    return ModelCard(name=run.model, digest="0" * 64, context_length=4_096, block_size=16)


def _profile(card: ModelCard) -> Profile:
    return Profile(
        model=card.name,
        card_digest=card.digest,
        slots=64,
        kv_blocks=65_536,
        block_size=card.block_size,
        context_length=card.context_length,
    )


def _report() -> AttachRequest:
    report = LoadReport(free_kv_blocks=65_536, tokens_per_second=1e6, prefill_tokens_per_second=1e6, steps=1)
    report.step_time.FromMilliseconds(1)
    return AttachRequest(load_report=report)
