"""Service reports: the service that tickets have received, for the shards that offered them. `now` is in s."""

from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field

from penstock.mesh.v1.queue_pb2 import ServedTicket
from penstock.scheduler.effects import SendServiceReport
from penstock.scheduler.fleet.worker import Worker
from penstock.scheduler.leases import LeaseEntry

RESEND_WINDOW_S = 5.0  # s in which ends are sent again if the stream breaks; later ones were received
ABSENT_QUEUE_TTL_S = 30.0  # s for which reports are kept for a disconnected shard


@dataclass(slots=True)
class ServiceReports:
    """The latest report of each attempt that was not sent yet, by shard."""

    _pending: dict[str, dict[tuple[str, int], ServedTicket]] = field(default_factory=dict)  # shard: ticket and attempt
    _absent_since: dict[str, float] = field(default_factory=dict)  # s, by shard
    _last_sent_at: float = 0.0  # s; time of the latest tick
    _recent_ends: deque[tuple[float, str, ServedTicket]] = field(default_factory=deque)  # s of sending, shard, report

    def __len__(self) -> int:
        return sum(len(tickets) for tickets in self._pending.values())

    def record(self, entry: LeaseEntry, *, ended: bool = False) -> None:
        """Record the service of a lease. A report without `ended` overrides an earlier report of its end."""
        report = ServedTicket(
            ticket_id=entry.ticket_id,
            attempt=entry.attempt,
            prompt_tokens=entry.served_prompt_tokens,
            output_tokens=entry.served_output_tokens,
            ended=ended,
            worker_steps=entry.served_at_step,
        )
        if entry.first_token_after:
            report.first_token_after.CopyFrom(entry.first_token_after)
        self._pending.setdefault(entry.queue, {})[entry.ticket_id, entry.attempt] = report

    def pop_all(self, connected: Container[str], now: float) -> list[SendServiceReport]:
        """Return the reports for connected shards, and keep those for absent shards for ABSENT_QUEUE_TTL_S."""
        self._last_sent_at = now
        queues = [queue for queue in self._pending if queue in connected]
        reports = [SendServiceReport(queue, tuple(self._pending.pop(queue).values())) for queue in queues]
        since = {queue: self._absent_since.get(queue, now) for queue in self._pending}
        for queue, lost_at in since.items():
            if lost_at + ABSENT_QUEUE_TTL_S <= now:
                del self._pending[queue]
        self._absent_since = {queue: lost_at for queue, lost_at in since.items() if queue in self._pending}
        for report in reports:
            self._record_ends(report)
        while self._recent_ends and self._recent_ends[0][0] + RESEND_WINDOW_S <= now:
            self._recent_ends.popleft()
        return reports

    def pop_for(self, queue: str | None, worker: Worker) -> list[SendServiceReport]:
        """Return the report that a shard needs before it chooses the next ticket for a worker, with the worker's steps.

        `queue` is the only shard with waiting tickets; None if there are several. If one of several shards received
        reports earlier than the others, its tenants would be charged earlier.
        """
        steps = worker.steps_update_for(queue) if queue else None
        if not queue or not steps:
            return []
        report = SendServiceReport(queue, tuple(self._pending.pop(queue, {}).values()), (steps,))
        self._record_ends(report)
        return [report]

    def _record_ends(self, report: SendServiceReport) -> None:
        self._recent_ends.extend((self._last_sent_at, report.queue, each) for each in report.tickets if each.ended)

    def on_queue_disconnected(self, queue: str) -> None:
        """Keep recent ends to be sent again, because they may be lost with the stream. Shards ignore duplicates."""
        pending = self._pending.setdefault(queue, {})
        for _, shard, ticket in self._recent_ends:
            if shard == queue:
                pending.setdefault((ticket.ticket_id, ticket.attempt), ticket)
        if not pending:
            del self._pending[queue]
