"""Synchronizes virtual time between shards. Has no clock and no streams."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.mesh.v1.queue_pb2 import VirtualTime
from penstock.scheduler.credit.credit_book import CreditBook
from penstock.scheduler.effects import SendVirtualTimes

VirtualTimeByClass = dict[tuple[str, int], float]  # virtual tokens by model and class


@dataclass(slots=True)
class VirtualTimeSync:
    """Virtual time of the other shards, as it was last sent to each shard."""

    _last_sent: dict[str, VirtualTimeByClass] = field(default_factory=dict)

    def updates(self, queues: Iterable[str], books: Mapping[str, CreditBook]) -> list[SendVirtualTimes]:
        """Return the virtual times that have advanced since they were sent."""
        return [SendVirtualTimes(queue, times) for queue in queues if (times := self._updates_for(queue, books))]

    def discard(self, queue: str) -> None:
        self._last_sent.pop(queue, None)

    def _updates_for(self, queue: str, books: Mapping[str, CreditBook]) -> tuple[VirtualTime, ...]:
        sent = self._last_sent.setdefault(queue, {})
        found = {
            (model, priority): tokens
            for model, credit in books.items()
            for priority, tokens in credit.remote_virtual_time(queue).items()
            if tokens > sent.get((model, priority), 0.0)
        }
        sent |= found
        return tuple(
            VirtualTime(model=model, priority=priority, virtual_tokens=tokens)  # type: ignore[arg-type]  # a value of this enum
            for (model, priority), tokens in found.items()
        )
