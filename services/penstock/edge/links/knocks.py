"""Who asked a shard whether it would take a request in, and waits to hear."""

import asyncio
from collections import Counter
from itertools import count

from penstock.edge.refusals import Kind
from penstock.mesh.v1.queue_pb2 import Shed

PATIENCE = 0.25  # s; a shard answers in a few ms, and one of an older release never does
MOST = 8  # of one kind at a time: to ask is held against no limit of its tenant

Answer = Shed | None  # None: it would, or nobody can tell


class Knocks:
    """By the id that a shard answers with. Each is answered once, or given up by whoever waits."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._kinds = Counter[Kind]()
        self._waiting: dict[str, tuple[str, asyncio.Future[Answer]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def next_id(self) -> str:
        """Return an id that no ticket has, and no other of this process that asks."""
        return f"?{next(self._numbers)}"

    def is_full(self, kind: Kind) -> bool:
        return self._kinds[kind] >= MOST

    async def answer(self, shard: str, ticket_id: str, kind: Kind) -> Answer:
        """Wait for what a shard says that was asked a moment ago; one that does not answer in time refuses nobody."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[ticket_id] = shard, answer
        self._kinds[kind] += 1
        try:
            async with asyncio.timeout(PATIENCE):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._waiting[ticket_id]
            self._kinds -= Counter({kind: 1})  # and forgets those of whom nobody waits

    def hear(self, shard: str, ticket_id: str, answer: Answer) -> None:
        asked, waiting = self._waiting.get(ticket_id, ("", None))
        if waiting and asked == shard and not waiting.done():
            waiting.set_result(answer)

    def lose(self, shard: str) -> None:
        """A shard is gone and answers nobody."""
        for ticket_id, (asked, _) in self._waiting.items():
            if asked == shard:
                self.hear(shard, ticket_id, None)
