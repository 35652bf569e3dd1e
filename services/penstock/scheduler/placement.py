"""Which worker a ticket goes to. Policies are plain classes; ties go to the lower worker id, so that runs repeat."""

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.scheduler.fleet import Worker

# Tokens at the beginning of a ticket's prompt that a worker has in its cache.
Overlap = Callable[[Worker, Ticket], int]


def no_overlap(_worker: Worker, _ticket: Ticket) -> int:
    return 0


class Placement(Protocol):
    """Chooses among workers that can all take the ticket."""

    def choose(self, workers: Sequence[Worker], ticket: Ticket) -> Worker: ...


class LeastLoaded:
    """The worker with the least prefill in front of the ticket, its own included, then the emptiest.

    Time to first token is what a client feels, and prefill is what delays it; decodes share their steps.
    """

    def __init__(self, overlap: Overlap = no_overlap) -> None:
        self._overlap = overlap

    def choose(self, workers: Sequence[Worker], ticket: Ticket) -> Worker:
        def load(worker: Worker) -> tuple[int, float, str]:
            prefill = worker.prefill_tokens - self._overlap(worker, ticket)
            return prefill, worker.used_share, worker.worker_id

        return min(workers, key=load)
