"""How far shards have come in serving their tenants, for the others to keep up with. Knows no clock and no stream."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.mesh.v1.queue_pb2 import VirtualTime
from penstock.scheduler.credit.credit_book import CreditBook
from penstock.scheduler.effects import SendVirtualTimes

VirtualTimeByClass = dict[tuple[str, int], float]  # virtual tokens by model and class


@dataclass(slots=True)
class VirtualTimeSync:
    """What each shard was told last."""

    _last_sent: dict[str, VirtualTimeByClass] = field(default_factory=dict)

    def updates(self, queues: Iterable[str], books: Mapping[str, CreditBook]) -> list[SendVirtualTimes]:
        """Return what is news: virtual time does not go back, and none is told before there is any."""
        return [SendVirtualTimes(queue, times) for queue in queues if (times := self._updates_for(queue, books))]

    def discard(self, queue: str) -> None:
        self._last_sent.pop(queue, None)

    def _updates_for(self, queue: str, books: Mapping[str, CreditBook]) -> tuple[VirtualTime, ...]:
        told = self._last_sent.setdefault(queue, {})
        found = {
            (model, priority): tokens
            for model, credit in books.items()
            for priority, tokens in credit.remote_virtual_time(queue).items()
            if tokens > told.get((model, priority), 0.0)
        }
        told |= found
        return tuple(
            VirtualTime(model=model, priority=priority, virtual_tokens=tokens)  # type: ignore[arg-type]  # of this enum
            for (model, priority), tokens in found.items()
        )
