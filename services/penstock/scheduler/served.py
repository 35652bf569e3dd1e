"""What tickets were served so far, on its way to the shards that they came from. Knows no stream; `now` is in s."""

from collections.abc import Container
from dataclasses import dataclass, field

from penstock.mesh.v1.queue_pb2 import ServedTicket
from penstock.scheduler.effects import TellServed
from penstock.scheduler.leases import LeaseEntry

KEPT_FOR = 30.0  # s; for a shard whose stream is cut: it may be back, and charges what it hears then


@dataclass(slots=True)
class ServedBook:
    """Between two frames, the last that there is to say of each attempt."""

    _pending: dict[str, dict[tuple[str, int], ServedTicket]] = field(default_factory=dict)  # shard: ticket and attempt
    _absent_since: dict[str, float] = field(default_factory=dict)  # s, by shard

    def __len__(self) -> int:
        return sum(len(tickets) for tickets in self._pending.values())

    def note(self, entry: LeaseEntry, *, ended: bool = False) -> None:
        """Of a lease without anything served it says that the ticket runs, whoever said that it had ended."""
        self._pending.setdefault(entry.queue, {})[entry.ticket_id, entry.attempt] = ServedTicket(
            ticket_id=entry.ticket_id,
            attempt=entry.attempt,
            prompt_tokens=entry.prompt_served,
            output_tokens=entry.output_served,
            ended=ended,
        )

    def take(self, joined: Container[str], now: float) -> list[TellServed]:
        """Return what is to be told, and keep for a while what nobody can hear now."""
        found = [
            TellServed(queue, tuple(self._pending.pop(queue).values()))
            for queue in list(self._pending)
            if queue in joined
        ]
        since = {queue: self._absent_since.get(queue, now) for queue in self._pending}
        for queue, lost_at in since.items():
            if lost_at + KEPT_FOR <= now:
                del self._pending[queue]
        self._absent_since = {queue: lost_at for queue, lost_at in since.items() if queue in self._pending}
        return found
