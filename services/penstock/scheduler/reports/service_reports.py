"""Service reports: the service that tickets have received, for the shards that offered them. `now` is in s."""

from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from penstock.chassis.durations import set_seconds
from penstock.mesh.v1.queue_pb2 import OutputProgress, ServedTicket, WorkerSteps
from penstock.mesh.v1.scheduler_pb2 import Progress
from penstock.scheduler.effects import SendServiceReport
from penstock.scheduler.fleet.worker import Worker
from penstock.scheduler.leases import LeaseEntry

RESEND_WINDOW_S = 5.0  # s in which ends are sent again if the stream breaks; later ones were received
ABSENT_QUEUE_TTL_S = 30.0  # s for which reports are kept for a disconnected shard
# Tickets of one frame, so that a frame does not hold the loop of the shard: those in full, and those by number.
MAX_FULL_TICKETS = 512
MAX_NUMBERED_TICKETS = 4_096
MAX_FULL_TICKETS_PER_SLICE = 512  # tickets that one slice of work reports in full, over all shards


@dataclass(slots=True)
class ServiceReports:
    """The latest service of each lease that was not sent yet, by shard.

    A shard receives a lease in full first, with a number that names it on this stream. Output of a lease that the shard
    knows is sent by number, as parallel arrays.
    """

    _pending: dict[str, dict[str, LeaseEntry]] = field(default_factory=dict)  # to be sent in full, by shard and id
    _output: dict[str, list[OutputProgress]] = field(default_factory=dict)  # to be sent by number, by connected shard
    _streams: dict[str, int] = field(default_factory=dict)  # number of the stream of each connected shard
    _last_stream: int = 0
    _last_number: int = 0
    _absent_since: dict[str, float] = field(default_factory=dict)  # s, by shard
    _last_sent_at: float = 0.0  # s; time of the latest tick
    _is_slice_due: bool = False  # the latest slice has left tickets that were due
    _recent_ends: deque[tuple[float, str, LeaseEntry]] = field(default_factory=deque)  # s of sending, shard, lease

    def __len__(self) -> int:
        by_number = sum(len(each.ticket_numbers) for reports in self._output.values() for each in reports)
        return by_number + sum(len(leases) for leases in self._pending.values())

    def record(self, entry: LeaseEntry, *, ended: bool = False) -> None:
        """Record the service of a lease in full. A report without `ended` overrides an earlier report of its end."""
        entry.has_ended = ended
        self._pending.setdefault(entry.queue, {})[entry.lease_id] = entry

    def record_output(self, leases: Mapping[int, LeaseEntry], progress: Progress, steps: int) -> None:
        """Record the output of leases of one worker that has done `steps` steps. `leases`: by the worker's numbers."""
        by_stream = {stream: (list[int](), list[int]()) for stream in self._streams.values()}
        for number, output_tokens in zip(progress.lease_numbers[:], progress.output_tokens[:], strict=False):
            entry = leases.get(number)
            if entry is None:
                continue
            entry.served_output_tokens, entry.served_at_step = output_tokens, steps
            known = by_stream.get(entry.report_stream)
            if known is None:
                self.record(entry)
            else:
                known[0].append(entry.report_number)
                known[1].append(output_tokens)
        for queue, stream in self._streams.items():
            numbers, tokens = by_stream[stream]
            if numbers:
                output = OutputProgress(ticket_numbers=numbers, output_tokens=tokens, worker_steps=steps)
                self._output.setdefault(queue, []).append(output)

    def pop_due(self, connected: Container[str], now: float) -> list[SendServiceReport]:
        """Return the first slice of the reports for connected shards. Called with each tick.

        Reports for absent shards are kept for ABSENT_QUEUE_TTL_S.
        """
        self._last_sent_at = now
        since = {queue: self._absent_since.get(queue, now) for queue in self._pending if queue not in connected}
        for queue, lost_at in since.items():
            if lost_at + ABSENT_QUEUE_TTL_S <= now:
                del self._pending[queue]
        self._absent_since = {queue: lost_at for queue, lost_at in since.items() if queue in self._pending}
        while self._recent_ends and self._recent_ends[0][0] + RESEND_WINDOW_S <= now:
            self._recent_ends.popleft()
        return self.pop_slice(connected)

    @property
    def is_slice_due(self) -> bool:
        """Whether `pop_slice` is to be called before the next tick: very many leases change at once."""
        return self._is_slice_due

    def pop_slice(self, connected: Container[str]) -> list[SendServiceReport]:
        """Return reports for connected shards, with a bounded number of leases in full."""
        reports: list[SendServiceReport] = []
        left = MAX_FULL_TICKETS_PER_SLICE
        for queue in dict.fromkeys((*self._output, *self._pending)):
            if queue in connected:
                found = self._pop(queue, left)
                left -= sum(len(each.tickets) for each in found)
                reports += found
        self._is_slice_due = not left
        return reports

    def pop_for(self, queue: str | None, worker: Worker) -> list[SendServiceReport]:
        """Return the report that a shard needs before it chooses the next ticket for a worker, with the worker's steps.

        `queue` is the only shard with waiting tickets; None if there are several. If one of several shards received
        reports earlier than the others, its tenants would be charged earlier.
        """
        steps = worker.steps_update_for(queue) if queue else None
        return self._pop(queue, steps=steps) if queue and steps else []

    def _pop(
        self, queue: str, limit: int = MAX_FULL_TICKETS_PER_SLICE, steps: WorkerSteps | None = None
    ) -> list[SendServiceReport]:
        """Return all output by number that a shard was not sent yet, and then at most `limit` leases in full.

        Output by number comes first, because it may be of leases that have ended and are then reported in full.
        """
        leases = self._take_pending(queue, limit)
        stream = self._streams.get(queue, 0)
        self._recent_ends.extend((self._last_sent_at, queue, each) for each in leases if each.has_ended)
        tickets = list(_batches([self._full_report(entry, stream) for entry in leases]))
        output = list(_portions(self._output.pop(queue, [])))
        if len(tickets) == len(output) == 1:
            reports = [SendServiceReport(queue, tickets[0], progress=output[0])]
        else:
            reports = [SendServiceReport(queue, (), progress=each) for each in output]
            reports += [SendServiceReport(queue, each) for each in tickets]
        if steps:
            reports = reports or [SendServiceReport(queue, ())]
            reports[-1].workers = (steps,)
        return reports

    def _take_pending(self, queue: str, limit: int) -> list[LeaseEntry]:
        """Remove and return the oldest leases that wait to be reported in full."""
        pending = self._pending.get(queue, {})
        if len(pending) <= limit:
            return list(self._pending.pop(queue, pending).values())
        return [pending.pop(lease_id) for lease_id in list(islice(pending, limit))]

    def _full_report(self, entry: LeaseEntry, stream: int) -> ServedTicket:
        """Return the report of a lease, and number the lease on this stream if it runs."""
        if not entry.has_ended and entry.report_stream != stream:
            self._last_number += 1
            entry.report_stream, entry.report_number = stream, self._last_number
        report = ServedTicket(
            ticket_id=entry.ticket_id,
            attempt=entry.attempt,
            prompt_tokens=entry.served_prompt_tokens,
            output_tokens=entry.served_output_tokens,
            ended=entry.has_ended,
            worker_steps=entry.served_at_step,
            number=0 if entry.has_ended else entry.report_number,
        )
        if entry.first_token_after:
            set_seconds(report.first_token_after, entry.first_token_after)
        return report

    def on_queue_connected(self, queue: str) -> None:
        self._last_stream += 1
        self._streams[queue] = self._last_stream

    def on_queue_disconnected(self, queue: str) -> None:
        """Keep recent ends to be sent again, because they may be lost with the stream. Shards ignore duplicates."""
        self._streams.pop(queue, None)
        self._output.pop(queue, None)  # the next stream has other numbers; later reports are totals, too
        pending = self._pending.setdefault(queue, {})
        for _, shard, entry in self._recent_ends:
            if shard == queue:
                pending.setdefault(entry.lease_id, entry)
        if not pending:
            del self._pending[queue]


def _portions(output: Sequence[OutputProgress]) -> Iterator[tuple[OutputProgress, ...]]:
    """Yield the reports in portions of about MAX_NUMBERED_TICKETS tickets. A report has the tickets of one worker."""
    taken: list[OutputProgress] = []
    tickets = 0
    for each in output:
        taken.append(each)
        tickets += len(each.ticket_numbers)
        if tickets >= MAX_NUMBERED_TICKETS:
            yield tuple(taken)
            taken, tickets = [], 0
    if taken:
        yield tuple(taken)


def _batches(tickets: Sequence[ServedTicket]) -> Iterator[tuple[ServedTicket, ...]]:
    remaining = iter(tickets)
    while batch := tuple(islice(remaining, MAX_FULL_TICKETS)):
        yield batch
