"""What tickets were served so far, on its way to the shards that they came from. Knows no stream; `now` is in s."""

from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field

from penstock.mesh.v1.queue_pb2 import ServedTicket
from penstock.scheduler.effects import SendServiceReport
from penstock.scheduler.fleet.worker import Worker
from penstock.scheduler.leases import LeaseEntry

RESEND_WINDOW_S = 5.0  # s; by then a stream on which they were told has broken, or they were heard
ABSENT_QUEUE_TTL_S = 30.0  # s; for a shard whose stream is cut: it may be back, and charges what it hears then


@dataclass(slots=True)
class ServiceReports:
    """Between two frames, the last that there is to say of each attempt."""

    _pending: dict[str, dict[tuple[str, int], ServedTicket]] = field(default_factory=dict)  # shard: ticket and attempt
    _absent_since: dict[str, float] = field(default_factory=dict)  # s, by shard
    _last_sent_at: float = 0.0  # s; when all was told last
    _recent_ends: deque[tuple[float, str, ServedTicket]] = field(
        default_factory=deque
    )  # told of late: when, to which shard

    def __len__(self) -> int:
        return sum(len(tickets) for tickets in self._pending.values())

    def record(self, entry: LeaseEntry, *, ended: bool = False) -> None:
        """Of a lease without anything served it says that the ticket runs, whoever said that it had ended."""
        told = ServedTicket(
            ticket_id=entry.ticket_id,
            attempt=entry.attempt,
            prompt_tokens=entry.served_prompt_tokens,
            output_tokens=entry.served_output_tokens,
            ended=ended,
            worker_steps=entry.served_at_step,
        )
        if entry.first_token_after:
            told.first_token_after.CopyFrom(entry.first_token_after)
        self._pending.setdefault(entry.queue, {})[entry.ticket_id, entry.attempt] = told

    def pop_all(self, connected: Container[str], now: float) -> list[SendServiceReport]:
        """Return what is to be told, and keep for a while what nobody can hear now."""
        self._last_sent_at = now
        heard = [queue for queue in self._pending if queue in connected]
        found = [SendServiceReport(queue, tuple(self._pending.pop(queue).values())) for queue in heard]
        since = {queue: self._absent_since.get(queue, now) for queue in self._pending}
        for queue, lost_at in since.items():
            if lost_at + ABSENT_QUEUE_TTL_S <= now:
                del self._pending[queue]
        self._absent_since = {queue: lost_at for queue, lost_at in since.items() if queue in self._pending}
        for told in found:
            self._record_ends(told)
        while self._recent_ends and self._recent_ends[0][0] + RESEND_WINDOW_S <= now:
            self._recent_ends.popleft()
        return found

    def pop_for(self, queue: str | None, worker: Worker) -> list[SendServiceReport]:
        """Return what a shard is to hear before it chooses what is next on a worker: all there is, and how far that is.

        `queue`: None while several wait. Tenants of one that was told more would seem to have had more.
        """
        steps = worker.steps_update_for(queue) if queue else None
        if not queue or not steps:
            return []
        told = SendServiceReport(queue, tuple(self._pending.pop(queue, {}).values()), (steps,))
        self._record_ends(told)
        return [told]

    def _record_ends(self, report: SendServiceReport) -> None:
        self._recent_ends.extend((self._last_sent_at, report.queue, each) for each in report.tickets if each.ended)

    def on_queue_disconnected(self, queue: str) -> None:
        """Tell again the ends that may have been on a stream that was cut; hearing of them twice does no harm."""
        pending = self._pending.setdefault(queue, {})
        for _, whose, ticket in self._recent_ends:
            if whose == queue:
                pending.setdefault((ticket.ticket_id, ticket.attempt), ticket)
        if not pending:
            del self._pending[queue]
