"""Who asked a shard whether it would take a request in, and waits to hear."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from penstock.edge.refusals import Kind
from penstock.mesh.v1.queue_pb2 import Shed

PATIENCE = 0.25  # s; a shard answers in a few ms, and one of an older release never does
MOST = 4  # of one kind that ask at a time: what they are told is said to most of those that wait behind them

Answer = Shed | None  # None: it would, or it is gone


class Knocks:
    """By the id that a shard answers with. Each is answered once, or given up by whoever waits."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._turns: dict[Kind, asyncio.Semaphore] = {}
        self._present = Counter[Kind]()  # those that ask and those that wait for their turn
        self._waiting: dict[str, tuple[str, asyncio.Future[Answer]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def next_id(self) -> str:
        """Return an id that no ticket has, and no other of this process that asks."""
        return f"?{next(self._numbers)}"

    @asynccontextmanager
    async def turn(self, kind: Kind) -> AsyncIterator[bool]:
        """A block for few of a kind at a time; gives whether it had to be waited for."""
        turns = self._turns.setdefault(kind, asyncio.Semaphore(MOST))
        self._present[kind] += 1
        try:
            had_to_wait = turns.locked()
            async with turns:
                yield had_to_wait
        finally:
            self._present[kind] -= 1
            if not self._present[kind]:
                del self._present[kind], self._turns[kind]

    async def answer(self, shard: str, ticket_id: str) -> Answer:
        """Wait for what a shard says that was asked a moment ago."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[ticket_id] = shard, answer
        try:
            return await answer
        finally:
            del self._waiting[ticket_id]

    def hear(self, shard: str, ticket_id: str, answer: Answer) -> None:
        asked, waiting = self._waiting.get(ticket_id, ("", None))
        if waiting and asked == shard and not waiting.done():
            waiting.set_result(answer)

    def lose(self, shard: str) -> None:
        """A shard is gone and answers nobody."""
        for ticket_id, (asked, _) in self._waiting.items():
            if asked == shard:
                self.hear(shard, ticket_id, None)
