"""Clients of the mesh, which use the client SDK, and a transcript of each request."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from penstock.bench.transcript import TokenTranscript
from penstock.chassis.errors import PenstockError
from penstock.client import Client, RetryPolicy, Session
from penstock.faults.checks import oracle
from penstock.faults.checks.allowed_failures import PATIENCE_S
from penstock.faults.plan import PlannedRequest, PlannedTokenCount
from penstock.v1.inference_pb2 import FINISH_REASON_STOP

GeneratingClient = Client | Session
TOP_LOGPROBS = 2  # of requests with log probabilities


@dataclass(slots=True, kw_only=True)
class ClientTranscript(TokenTranscript):
    """Everything that one client received for one planned request."""

    request: PlannedRequest
    logprobs: int = 0
    top_token_ids: list[int] = field(default_factory=list)  # `TOP_LOGPROBS` for each token, if requested
    seed: int = 0
    version: int = 0  # of the model, as reported with `accepted`
    prompt_tokens: int = 0  # as reported with `accepted`; 0 before
    usage: tuple[int, int] | None = None  # prompt and output tokens, as reported at the end
    failure_reason: str = ""
    attempts: int = 0
    has_cancelled: bool = False
    has_ended: bool = False


@dataclass(slots=True, kw_only=True)
class TokenCountResult:
    """The result of one CountTokens call."""

    request: PlannedTokenCount
    token_ids: list[int] = field(default_factory=list)
    failure_text: str = ""
    failure_reason: str = ""
    retry_after: float | None = None  # s, as the error suggests; None: no suggestion
    has_ended: bool = False
    ended_at: float = 0.0


async def run_clients(
    targets: Sequence[str],
    keys: Sequence[str],
    versions: Mapping[str, int],
    transcripts: Sequence[ClientTranscript],
    token_counts: Sequence[TokenCountResult] = (),
    *,
    failover: Sequence[str] = (),
) -> None:
    """Send each request at its planned time; return when all have ended.

    `keys`: of the tenants. `versions`: of the model, by digest. `failover`: edges of other regions.
    """
    async with AsyncExitStack() as stack:
        retries = RetryPolicy(connect_timeout=PATIENCE_S)
        clients: dict[int, Client] = {}
        sessions: dict[int, Session] = {}
        used = [each.request.tenant for each in transcripts] + [each.request.tenant for each in token_counts]
        for number in sorted({0, *used}):
            client = Client(*targets, failover=failover, api_key=keys[number], retries=retries)
            clients[number] = await stack.enter_async_context(client)
            if any(each.request.uses_session and each.request.tenant == number for each in transcripts):
                sessions[number] = await stack.enter_async_context(clients[number].session())
        async with asyncio.TaskGroup() as group:
            for each in transcripts:
                senders: Mapping[int, GeneratingClient] = sessions if each.request.uses_session else clients
                group.create_task(_send(senders[each.request.tenant], each, versions))
            for result in token_counts:
                group.create_task(_count_tokens(clients[result.request.tenant], result))


async def _count_tokens(client: Client, result: TokenCountResult) -> None:
    await asyncio.sleep(result.request.starts_at)
    try:
        answer = await client.count_tokens(oracle.text_of(result.request.prompt), include_token_ids=True)
        result.token_ids = list(answer.token_ids)
    except PenstockError as error:
        result.failure_reason, result.retry_after = error.reason, error.retry_after
        result.failure_text = f"{error.code.name} {error.reason}: {error.message}"
    result.has_ended, result.ended_at = True, asyncio.get_running_loop().time()


async def _send(client: GeneratingClient, transcript: ClientTranscript, versions: Mapping[str, int]) -> None:
    await asyncio.sleep(transcript.request.starts_at)
    try:
        async with asyncio.timeout(transcript.request.cancel_after_s):
            await _read(client, transcript, versions)
    except TimeoutError:
        transcript.has_cancelled = True
    except PenstockError as error:
        transcript.failure_reason, transcript.retry_after = error.reason, error.retry_after
        transcript.failure_text = f"{error.code.name} {error.reason}: {error.message}"
    transcript.has_ended, transcript.ended_at = True, asyncio.get_running_loop().time()


async def _read(client: GeneratingClient, transcript: ClientTranscript, versions: Mapping[str, int]) -> None:
    request = transcript.request
    stall_after = request.stall_after_tokens
    async with client.generate(_prompt_of(request), **_options_of(request)) as answer:
        try:
            if request.cancel_after_tokens == 0:
                await asyncio.sleep(0.01)
            async for delta in answer:
                transcript.record_chunk(asyncio.get_running_loop().time(), delta)
                transcript.logprobs += len(delta.logprobs)
                transcript.top_token_ids += delta.top_token_ids
                if stall_after is not None and len(transcript.token_ids) >= stall_after:
                    stall_after = None
                    await asyncio.sleep(request.stall_s)
                if request.cancel_after_tokens is not None and len(transcript.token_ids) >= request.cancel_after_tokens:
                    transcript.has_cancelled = True
                    return
            finished, accepted = answer.finished, answer.accepted
            transcript.seed, transcript.prompt_tokens = accepted.seed, accepted.prompt_tokens
            transcript.usage = finished.usage.prompt_tokens, finished.usage.output_tokens
            transcript.finish_reason = "stop" if finished.reason == FINISH_REASON_STOP else "length"
        finally:
            transcript.attempts = answer.attempts
            if not transcript.seed and transcript.token_ids:
                transcript.seed = answer.accepted.seed
            if answer.is_accepted:
                transcript.version = versions[answer.accepted.model_version]


def _prompt_of(request: PlannedRequest) -> Any:
    return oracle.text_of(request.prompt) if request.sends_text else request.prompt


def _options_of(request: PlannedRequest) -> Any:
    return {
        "max_output_tokens": request.max_output_tokens,
        "temperature": 0.0 if request.seed is None else 1.0,
        "seed": request.seed,
        "ignore_eos": request.ignore_eos,
        "stop": request.stops,
        "timeout": request.timeout_s,
        "priority": request.priority,
        "logprobs": request.logprobs,
        "top_logprobs": TOP_LOGPROBS if request.logprobs else 0,
    }
