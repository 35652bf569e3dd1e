"""Clients of the mesh, by the shipped SDK, and what each of them saw."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from penstock.chassis.errors import PenstockError
from penstock.client import Client, RetryPolicy, Session
from penstock.faults.checks import oracle
from penstock.faults.checks.allowed_failures import PATIENCE
from penstock.faults.plan import Ask, Count
from penstock.v1.inference_pb2 import FINISH_REASON_STOP

Asker = Client | Session


@dataclass(slots=True, kw_only=True)
class Seen:
    """What one client saw of one request."""

    ask: Ask
    token_ids: list[int] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: int = 0
    seed: int = 0
    prompt_tokens: int = 0  # as accepted, 0 before
    usage: tuple[int, int] | None = None  # prompt and output tokens of the last attempt
    reason: str = ""  # stop or length; empty: not finished
    failure: str = ""  # code, reason and message
    reason_of_failure: str = ""
    retry_after: float | None = None  # s; what the failure says
    attempts: int = 0
    has_left: bool = False
    is_over: bool = False
    over_at: float = 0.0


@dataclass(slots=True, kw_only=True)
class Counted:
    """What came of one question for a size."""

    ask: Count
    token_ids: list[int] = field(default_factory=list)
    failure: str = ""
    reason_of_failure: str = ""
    retry_after: float | None = None  # s; what the failure says
    is_over: bool = False
    over_at: float = 0.0


async def run_clients(targets: Sequence[str], key: str, seen: Sequence[Seen], counted: Sequence[Counted] = ()) -> None:
    """Send everything at its moment, and return when all is over."""
    async with AsyncExitStack() as stack:
        retries = RetryPolicy(connect_timeout=PATIENCE)
        client = await stack.enter_async_context(Client(*targets, api_key=key, retries=retries))
        sessions = any(each.ask.in_session for each in seen)
        session = await stack.enter_async_context(client.session()) if sessions else None
        async with asyncio.TaskGroup() as group:
            for each in seen:
                asker: Asker = session if each.ask.in_session and session else client
                group.create_task(_send(asker, each))
            for question in counted:
                group.create_task(_count(client, question))


async def _count(client: Client, counted: Counted) -> None:
    await asyncio.sleep(counted.ask.at)
    try:
        answer = await client.count_tokens(oracle.text_of(counted.ask.prompt), include_token_ids=True)
        counted.token_ids = list(answer.token_ids)
    except PenstockError as error:
        counted.reason_of_failure, counted.retry_after = error.reason, error.retry_after
        counted.failure = f"{error.code.name} {error.reason}: {error.message}"
    counted.is_over, counted.over_at = True, asyncio.get_running_loop().time()


async def _send(asker: Asker, seen: Seen) -> None:
    await asyncio.sleep(seen.ask.at)
    try:
        async with asyncio.timeout(seen.ask.leaves_after):
            await _read(asker, seen)
    except TimeoutError:
        seen.has_left = True
    except PenstockError as error:
        seen.reason_of_failure, seen.retry_after = error.reason, error.retry_after
        seen.failure = f"{error.code.name} {error.reason}: {error.message}"
    seen.is_over, seen.over_at = True, asyncio.get_running_loop().time()


async def _read(asker: Asker, seen: Seen) -> None:
    ask = seen.ask
    stalls_at = ask.stalls_at
    async with asker.generate(_prompt(ask), **_options(ask)) as answer:
        try:
            if ask.leaves_at == 0:
                await asyncio.sleep(0.01)
            async for piece in answer:
                seen.indexes += range(piece.first_index, piece.first_index + len(piece.token_ids))
                seen.token_ids += piece.token_ids
                seen.text += piece.text
                seen.logprobs += len(piece.logprobs)
                if stalls_at is not None and len(seen.token_ids) >= stalls_at:
                    stalls_at = None
                    await asyncio.sleep(ask.stalls_for)
                if ask.leaves_at is not None and len(seen.token_ids) >= ask.leaves_at:
                    seen.has_left = True
                    return
            finished, accepted = answer.finished, answer.accepted
            seen.seed, seen.prompt_tokens = accepted.seed, accepted.prompt_tokens
            seen.usage = finished.usage.prompt_tokens, finished.usage.output_tokens
            seen.reason = "stop" if finished.reason == FINISH_REASON_STOP else "length"
        finally:
            seen.attempts = answer.attempts
            if not seen.seed and seen.token_ids:
                seen.seed = answer.accepted.seed


def _prompt(ask: Ask) -> Any:
    return oracle.text_of(ask.prompt) if ask.is_text else ask.prompt


def _options(ask: Ask) -> Any:
    return {
        "max_output_tokens": ask.tokens,
        "temperature": 0.0 if ask.seed is None else 1.0,
        "seed": ask.seed,
        "ignore_eos": ask.ignore_eos,
        "stop": ask.stops,
        "timeout": ask.timeout,
        "priority": ask.priority,
        "logprobs": ask.logprobs,
    }
