"""Clients that ask, one request after the other, through the shipped SDK."""

import asyncio
import itertools
import random
import time
from collections.abc import Sequence

from penstock.chassis.errors import PenstockError
from penstock.client import Client
from penstock.proofs.checks.transcript import History
from penstock.proofs.requests import Wish, with_stop
from penstock.v1.inference_pb2 import FinishReason, Timeline

ATTEMPT_TIMEOUT = 120.0  # s for one answer with all its attempts; an answer later than that is a failure
CALM_AT_ONCE = 4
NUMBERS = itertools.count(1)  # of requests, over all loads: the ledger knows them by nothing else


class Load:
    """`streams` clients in a closed loop, for as long as nobody says stop. Histories of all requests are kept."""

    def __init__(
        self, client: Client, wishes: Sequence[Wish], streams: int, seed: int, *, explain: bool = False
    ) -> None:
        """`explain`: have each answer say where its time went, for its history's stages."""
        self.histories: list[History] = []
        self.tokens = 0
        self._client = client
        self._wishes = wishes
        self._streams = streams
        self._explain = explain
        self._rng = random.Random(seed)
        self._is_over = asyncio.Event()

    @property
    def under_way(self) -> int:
        return sum(not history.ended for history in self.histories)

    @property
    def failures(self) -> int:
        return sum(bool(history.failure) for history in self.histories)

    def stop(self) -> None:
        """Ask nothing more; what is under way goes on to its end."""
        self._is_over.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._streams):
                group.create_task(self._ask_on())

    async def _ask_on(self) -> None:
        while not self._is_over.is_set():
            await self.ask(self._rng.randrange(len(self._wishes)))

    async def ask(self, number: int) -> History:
        wish = self._wishes[number]
        history = History(wish=number, request_id=f"score-{next(NUMBERS)}", started=time.time())
        self.histories.append(history)
        options = {
            **wish.options,
            "request_id": history.request_id,
            "timeout": ATTEMPT_TIMEOUT,
            "explain": self._explain,
        }
        answer = self._client.generate(wish.prompt, **options)  # type: ignore[arg-type]  # Options and two more
        try:
            async with answer:
                async for piece in answer:
                    history.take(time.time(), piece.first_index, piece.token_ids, piece.text)
                    self.tokens += len(piece.token_ids)
            history.finish = FinishReason.Name(answer.finished.reason) + answer.finished.stop_string
            history.usage_tokens = answer.finished.usage.output_tokens
            history.stages = before_decoding(answer.finished.timeline)
        except PenstockError as error:
            history.failure = f"{error.code.name} / {error.reason}: {error}"
        history.attempts, history.ended = answer.attempts, time.time()
        return history


def before_decoding(timeline: Timeline) -> dict[str, float]:
    """Seconds of each stretch up to the first token, by tier and name; of the last run alone what it did."""
    found: dict[str, float] = {}
    for stage in timeline.stages:
        if stage.name == "decode":
            return found
        found[f"{stage.tier} {stage.name}"] = stage.length.ToTimedelta().total_seconds()
    return found


async def answer_calmly(client: Client, wishes: Sequence[Wish]) -> tuple[list[Wish], Load]:
    """Have every wish answered without a fault, then half of them, greedy and drawn, once more with a stop string.

    Returns all wishes; the load's histories are theirs, in the same order.
    """
    gate = asyncio.Semaphore(CALM_AT_ONCE)
    plain = await _answer_all(Load(client, wishes, 0, 0), range(len(wishes)), gate)
    stopped = [with_stop(wishes[each.wish], each.text) for each in plain.histories if each.wish % 4 < 2 and each.text]
    every = [*wishes, *stopped]
    load = Load(client, every, 0, 0)
    load.histories = plain.histories
    return every, await _answer_all(load, range(len(wishes), len(every)), gate)


async def _answer_all(load: Load, numbers: Sequence[int], gate: asyncio.Semaphore) -> Load:
    async def one(number: int) -> None:
        async with gate:
            await load.ask(number)

    async with asyncio.TaskGroup() as group:
        for number in numbers:
            group.create_task(one(number))
    load.histories.sort(key=lambda history: history.wish)
    return load
