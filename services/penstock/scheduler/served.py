"""What tickets were served so far, on its way to the shards that they came from. Knows no stream; `now` is in s."""

from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field

from penstock.mesh.v1.queue_pb2 import ServedTicket
from penstock.scheduler.effects import TellServed
from penstock.scheduler.leases import LeaseEntry
from penstock.scheduler.worker import Worker

MAY_BE_LOST = 5.0  # s; by then a stream on which they were told has broken, or they were heard
KEPT_FOR = 30.0  # s; for a shard whose stream is cut: it may be back, and charges what it hears then


@dataclass(slots=True)
class ServedBook:
    """Between two frames, the last that there is to say of each attempt."""

    _pending: dict[str, dict[tuple[str, int], ServedTicket]] = field(default_factory=dict)  # shard: ticket and attempt
    _absent_since: dict[str, float] = field(default_factory=dict)  # s, by shard
    _now: float = 0.0  # s; when all was told last
    _ends: deque[tuple[float, str, ServedTicket]] = field(default_factory=deque)  # told of late: when, to which shard

    def __len__(self) -> int:
        return sum(len(tickets) for tickets in self._pending.values())

    def note(self, entry: LeaseEntry, *, ended: bool = False) -> None:
        """Of a lease without anything served it says that the ticket runs, whoever said that it had ended."""
        told = ServedTicket(
            ticket_id=entry.ticket_id,
            attempt=entry.attempt,
            prompt_tokens=entry.prompt_served,
            output_tokens=entry.output_served,
            ended=ended,
            steps=entry.served_at,
        )
        if entry.first_token_after:
            told.first_token_after.CopyFrom(entry.first_token_after)
        self._pending.setdefault(entry.queue, {})[entry.ticket_id, entry.attempt] = told

    def take(self, joined: Container[str], now: float) -> list[TellServed]:
        """Return what is to be told, and keep for a while what nobody can hear now."""
        self._now = now
        heard = [queue for queue in self._pending if queue in joined]
        found = [TellServed(queue, tuple(self._pending.pop(queue).values())) for queue in heard]
        since = {queue: self._absent_since.get(queue, now) for queue in self._pending}
        for queue, lost_at in since.items():
            if lost_at + KEPT_FOR <= now:
                del self._pending[queue]
        self._absent_since = {queue: lost_at for queue, lost_at in since.items() if queue in self._pending}
        for told in found:
            self._note_ends(told)
        while self._ends and self._ends[0][0] + MAY_BE_LOST <= now:
            self._ends.popleft()
        return found

    def take_for(self, queue: str | None, worker: Worker) -> list[TellServed]:
        """Return what a shard is to hear before it chooses what is next on a worker: all there is, and how far that is.

        `queue`: None while several wait. Tenants of one that was told more would seem to have had more.
        """
        steps = worker.steps_for(queue) if queue else None
        if not queue or not steps:
            return []
        told = TellServed(queue, tuple(self._pending.pop(queue, {}).values()), (steps,))
        self._note_ends(told)
        return [told]

    def _note_ends(self, told: TellServed) -> None:
        self._ends.extend((self._now, told.queue, each) for each in told.tickets if each.ended)

    def lost(self, queue: str) -> None:
        """Tell again the ends that may have been on a stream that was cut; hearing of them twice does no harm."""
        pending = self._pending.setdefault(queue, {})
        for _, whose, ticket in self._ends:
            if whose == queue:
                pending.setdefault((ticket.ticket_id, ticket.attempt), ticket)
        if not pending:
            del self._pending[queue]
