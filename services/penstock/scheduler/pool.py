"""All workers of one model at one scheduler: their sums, and the few that a ticket may go to."""

from collections.abc import Iterator, Sequence
from itertools import islice

from penstock.mesh.v1.ticket_pb2 import CatalogEntry, Ticket
from penstock.scheduler.placement import Placement
from penstock.scheduler.prefixes import PrefixIndex
from penstock.scheduler.ranking import Ranking
from penstock.scheduler.worker import Share, Worker, tokens_of

NOTHING = Share()
CANDIDATES = 4  # least loaded workers that are compared for a ticket, and as many of its own zone


class Pool:
    """Sums and ranks follow what changed at the workers when they are next asked for."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._workers: dict[str, Worker] = {}  # by stream, newest last
        self._counted: dict[str, Share] = {}
        self._ranking = Ranking()
        self._zones: dict[str, Ranking] = {}  # of workers that say where they are
        self._changed: list[Worker] = []
        self._totals = Share()
        self.prefixes = PrefixIndex()
        self.ever = 0  # tokens of the largest ticket that could run on any of them, were it empty

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def add(self, worker: Worker) -> None:
        self._workers[worker.key] = worker
        worker.changed, worker.is_listed = self._changed, False
        worker.list()
        self.ever = max(self.ever, worker.ever)

    def remove(self, worker: Worker) -> None:
        self._settle()
        del self._workers[worker.key]
        self._ranking.remove(worker.key)
        if worker.zone:
            self._zones[worker.zone].remove(worker.key)
            if not self._zones[worker.zone]:
                del self._zones[worker.zone]
        self.prefixes.forget(worker.key)
        self._totals.swap(self._counted.pop(worker.key), NOTHING)
        worker.changed = []
        self.ever = max((each.ever for each in self), default=0)

    @property
    def totals(self) -> Share:
        self._settle()
        return self._totals

    @property
    def largest(self) -> int:
        """Tokens of the largest ticket that any can take."""
        self._settle()
        return self._ranking.most_room

    def best(self) -> Worker | None:
        """Return the worker that comes next, be it full at the moment."""
        self._settle()
        found = next(self._ranking.search(1), None) or next(self._ranking.search(0), None)
        return self._workers[found] if found else None

    def place(self, ticket: Ticket) -> Worker | None:
        """Return the worker for a ticket; None when none can take it now."""
        self._settle()
        hashes = ticket.prefix_hashes
        found = [*islice(self._able(ticket, self._ranking), CANDIDATES)]
        if hashes:
            found += islice(self._acquainted(ticket), CANDIDATES)
        if len(self._zones) > 1 and (near := self._zones.get(ticket.zone)):
            found += islice(self._able(ticket, near), CANDIDATES)
        if not found:
            return None
        return self._placement.choose(found, ticket, lambda worker: self._cached(worker, hashes) if hashes else 0)

    def cached(self, worker: Worker, ticket: Ticket) -> int:
        """Tokens at the beginning of a ticket's prompt that a worker has in its cache."""
        return self._cached(worker, ticket.prefix_hashes) if ticket.prefix_hashes else 0

    def _cached(self, worker: Worker, hashes: Sequence[int]) -> int:
        return self.prefixes.blocks(worker.key, hashes) * worker.block_size

    def _able(self, ticket: Ticket, ranking: Ranking) -> Iterator[Worker]:
        """Yield those that can take it now, least loaded first."""
        avoided = ticket.avoid_workers
        for key in ranking.search(tokens_of(ticket)):
            worker = self._workers[key]
            if not avoided or worker.worker_id not in avoided:
                yield worker

    def _acquainted(self, ticket: Ticket) -> Iterator[Worker]:
        """Yield those that can take it now, of those that have most of its prompt in their caches."""
        tokens = tokens_of(ticket)
        for key in self.prefixes.longest(ticket.prefix_hashes):
            worker = self._workers[key]
            if tokens <= worker.largest and worker.worker_id not in ticket.avoid_workers:
                yield worker

    def can_ever_run(self, ticket: Ticket) -> bool:
        return any(worker.can_ever_run(ticket) for worker in self)

    def catalog_entry(self, model: str) -> CatalogEntry:
        newest = next(reversed(self._workers.values()))
        return CatalogEntry(
            model=model,
            card_digest=newest.profile.card_digest,
            worker_address=newest.address,
            workers_hint=len(self),
        )

    def _settle(self) -> None:
        for worker in self._changed:
            worker.settle()
            key, share = worker.key, worker.share
            self._totals.swap(self._counted.get(key, NOTHING), share)
            self._counted[key] = share
            load = self._placement.load(worker)
            self._ranking.put(key, load, worker.largest)
            if worker.zone:
                self._zones.setdefault(worker.zone, Ranking()).put(key, load, worker.largest)
        self._changed.clear()
