"""Synchronizes virtual time and waiting tickets between shards. Has no clock and no streams."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from penstock.mesh.limits.bounds import COUNT, RATE, TOTAL_TOKENS, VIRTUAL_TOKENS, at_most
from penstock.mesh.v1.queue_pb2 import VirtualTime
from penstock.scheduler.credit.credit_book import NO_BACKLOG, CreditBook
from penstock.scheduler.effects import SendVirtualTimes

VirtualTimeByClass = dict[tuple[str, int], VirtualTime]  # by model and class


@dataclass(slots=True)
class VirtualTimeSync:
    """Virtual time and waiting tickets of the other shards, as they were last sent to each shard."""

    _last_sent: dict[str, VirtualTimeByClass] = field(default_factory=dict)

    def updates(self, queues: Iterable[str], books: Mapping[str, CreditBook]) -> list[SendVirtualTimes]:
        """Return the virtual times that have advanced, and the waiting tickets that have changed, since the last."""
        return [SendVirtualTimes(queue, times) for queue in queues if (times := self._updates_for(queue, books))]

    def discard(self, queue: str) -> None:
        self._last_sent.pop(queue, None)

    def _updates_for(self, queue: str, books: Mapping[str, CreditBook]) -> tuple[VirtualTime, ...]:
        sent = self._last_sent[queue] = {
            key: at for key, at in self._last_sent.get(queue, {}).items() if key[0] in books
        }
        changed = []
        for model, book in books.items():
            for each in _remote_state(queue, model, book, sent):
                if each != sent.get((model, each.priority)):
                    sent[model, each.priority] = each
                    changed.append(each)
        return tuple(changed)


def _remote_state(queue: str, model: str, book: CreditBook, sent: VirtualTimeByClass) -> Iterator[VirtualTime]:
    """Yield the state of each class at the other shards. A virtual time never falls behind the one that was sent."""
    times, backlogs = book.remote_virtual_time(queue), book.remote_backlogs(queue)
    emptied = {priority for known, priority in sent if known == model}
    for priority in sorted(times.keys() | backlogs.keys() | emptied):
        backlog, last = backlogs.get(priority, NO_BACKLOG), sent.get((model, priority))
        yield VirtualTime(
            model=model,
            priority=priority,  # type: ignore[arg-type]  # a value of this enum
            virtual_tokens=min(VIRTUAL_TOKENS, max(times.get(priority, 0.0), last.virtual_tokens if last else 0.0)),
            waiting=at_most(backlog.tickets, COUNT),
            waiting_prompt_tokens=at_most(round(backlog.prompt_tokens), TOTAL_TOKENS),
            waiting_tokens=at_most(round(backlog.tokens), TOTAL_TOKENS),
            tickets_per_virtual_token=min(RATE, backlog.tickets_per_virtual_token),
        )
