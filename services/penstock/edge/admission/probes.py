"""Who asked a shard whether it would take a request in, and waits to hear."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from penstock.edge.admission.rejection_cache import TrafficClass
from penstock.mesh.v1.queue_pb2 import Shed

PROBE_TIMEOUT_S = 0.25  # s; a shard answers in a few ms, and one of an older release never does
MAX_CONCURRENT_PROBES = (
    4  # of one kind that ask at a time: what they are told is said to most of those that wait behind them
)

ProbeResult = Shed | None  # None: it would, or it is gone


class AdmissionProbes:
    """By the id that a shard answers with. Each is answered once, or given up by whoever waits."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._slots: dict[TrafficClass, asyncio.Semaphore] = {}
        self._users = Counter[TrafficClass]()  # those that ask and those that wait for their turn
        self._pending: dict[str, tuple[str, asyncio.Future[ProbeResult]]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def next_id(self) -> str:
        """Return an id that no ticket has, and no other of this process that asks."""
        return f"?{next(self._numbers)}"

    @asynccontextmanager
    async def slot(self, traffic_class: TrafficClass) -> AsyncIterator[bool]:
        """A block for few of a kind at a time; gives whether it had to be waited for."""
        turns = self._slots.setdefault(traffic_class, asyncio.Semaphore(MAX_CONCURRENT_PROBES))
        self._users[traffic_class] += 1
        try:
            had_to_wait = turns.locked()
            async with turns:
                yield had_to_wait
        finally:
            self._users[traffic_class] -= 1
            if not self._users[traffic_class]:
                del self._users[traffic_class], self._slots[traffic_class]

    async def wait_result(self, shard: str, ticket_id: str) -> ProbeResult:
        """Wait for what a shard says that was asked a moment ago."""
        answer: asyncio.Future[ProbeResult] = asyncio.get_running_loop().create_future()
        self._pending[ticket_id] = shard, answer
        try:
            return await answer
        finally:
            del self._pending[ticket_id]

    def on_result(self, shard: str, ticket_id: str, result: ProbeResult) -> None:
        asked, waiting = self._pending.get(ticket_id, ("", None))
        if waiting and asked == shard and not waiting.done():
            waiting.set_result(result)

    def on_shard_lost(self, shard: str) -> None:
        """A shard is gone and answers nobody."""
        for ticket_id, (asked, _) in self._pending.items():
            if asked == shard:
                self.on_result(shard, ticket_id, None)
