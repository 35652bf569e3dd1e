"""The pool of one model: its workers at one scheduler, their totals, and the candidates for a ticket.

Two digests of one name are two models, with a pool each.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from penstock.mesh.v1.ticket_pb2 import CatalogEntry, Ticket
from penstock.scheduler.fleet.placement import Placement
from penstock.scheduler.fleet.prefix_index import PrefixIndex
from penstock.scheduler.fleet.tournament_tree import TournamentTree
from penstock.scheduler.fleet.worker import CacheTurnover, CapacityTotals, Worker, max_tokens_of

EMPTY_TOTALS = CapacityTotals()
MAX_CANDIDATES = 4  # least loaded workers compared for a ticket, and as many in its zone and with its prefix


class Pool:
    """Workers of one model. Totals and ranks are updated when they are next used after a change."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._workers: dict[str, Worker] = {}  # by stream, newest last
        self._by_instance_id: dict[str, Worker] = {}
        self._counted_totals: dict[str, CapacityTotals] = {}
        self._tree = TournamentTree()
        self._zone_trees: dict[str, TournamentTree] = {}  # by zone
        self._changed: list[Worker] = []
        self._turnover = CacheTurnover()
        self._totals = CapacityTotals()
        self.prefix_index = PrefixIndex()
        self.max_supported_tokens = 0  # tokens of the largest ticket that an empty worker can run

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def add(self, worker: Worker) -> None:
        self._workers[worker.key] = self._by_instance_id[worker.worker_id] = worker
        worker.join_pool(self._turnover, self._changed)
        self.max_supported_tokens = max(self.max_supported_tokens, worker.max_supported_tokens)

    def remove(self, worker: Worker) -> None:
        self._refresh()
        del self._workers[worker.key]
        if self._by_instance_id.get(worker.worker_id) is worker:
            del self._by_instance_id[worker.worker_id]
        self._tree.remove(worker.key)
        if worker.zone:
            self._zone_trees[worker.zone].remove(worker.key)
            if not self._zone_trees[worker.zone]:
                del self._zone_trees[worker.zone]
        self.prefix_index.remove_worker(worker.key)
        self._totals.replace(self._counted_totals.pop(worker.key), EMPTY_TOTALS)
        worker.leave_pool()
        self.max_supported_tokens = max((each.max_supported_tokens for each in self), default=0)

    @property
    def totals(self) -> CapacityTotals:
        self._refresh()
        return self._totals

    @property
    def max_ticket_tokens(self) -> int:
        """Tokens of the largest ticket that a worker can take now."""
        self._refresh()
        return self._tree.max_free_tokens

    def next_worker(self) -> Worker | None:
        """Return the worker that the next ticket would be placed on, full or not; None if the pool is empty."""
        self._refresh()
        found = next(self._tree.search(1), None) or next(self._tree.search(0), None)
        return self._workers[found] if found else None

    def choose_worker(self, ticket: Ticket) -> Worker | None:
        """Return the worker for a ticket; None if no worker can take it now."""
        self._refresh()
        hashes = ticket.prefix_hashes
        found = [*islice(self._with_capacity(ticket, self._tree), MAX_CANDIDATES)]
        if hashes:
            found += islice(self._with_cached_prefix(ticket), MAX_CANDIDATES)
        if len(self._zone_trees) > 1 and (near := self._zone_trees.get(ticket.zone)):
            found += islice(self._with_capacity(ticket, near), MAX_CANDIDATES)
        if (expected := self._by_instance_id.get(ticket.expected_worker)) and expected.can_take(ticket):
            found.append(expected)
        if not found:
            return None
        return self._placement.choose(
            found, ticket, lambda worker: self._cached_tokens(worker, hashes) if hashes else 0
        )

    def cached_tokens(self, worker: Worker, ticket: Ticket) -> int:
        """Return the tokens of the ticket's prefix that are in the cache of a worker."""
        return self._cached_tokens(worker, ticket.prefix_hashes) if ticket.prefix_hashes else 0

    def _cached_tokens(self, worker: Worker, hashes: Sequence[int]) -> int:
        return self.prefix_index.cached_blocks(worker.key, hashes) * worker.block_size

    def _with_capacity(self, ticket: Ticket, tree: TournamentTree) -> Iterator[Worker]:
        """Yield the workers that can take a ticket now, least loaded first."""
        avoided = ticket.avoid_workers
        for key in tree.search(max_tokens_of(ticket)):
            worker = self._workers[key]
            if not avoided or worker.worker_id not in avoided:
                yield worker

    def _with_cached_prefix(self, ticket: Ticket) -> Iterator[Worker]:
        """Yield the workers that can take a ticket now, out of those with its longest cached prefix."""
        tokens = max_tokens_of(ticket)
        for key in self.prefix_index.workers_with_longest_prefix(ticket.prefix_hashes):
            worker = self._workers[key]
            if tokens <= worker.max_ticket_tokens and worker.worker_id not in ticket.avoid_workers:
                yield worker

    def can_ever_run(self, ticket: Ticket) -> bool:
        return any(worker.can_ever_run(ticket) for worker in self)

    def catalog_entry(self) -> CatalogEntry:
        newest = next(reversed(self._workers.values()))
        return CatalogEntry(
            model=newest.profile.model,
            card_digest=newest.profile.card_digest,
            worker_address=newest.address,
            workers_hint=len(self),
            slots_hint=sum(worker.profile.slots for worker in self),
            context_length=max(worker.profile.context_length for worker in self),
        )

    def _refresh(self) -> None:
        for worker in self._changed:
            worker.refresh_rates()
            key, share = worker.key, worker.capacity
            self._totals.replace(self._counted_totals.get(key, EMPTY_TOTALS), share)
            self._counted_totals[key] = share
            load = self._placement.load(worker)
            self._tree.put(key, load, worker.max_ticket_tokens)
            if worker.zone:
                self._zone_trees.setdefault(worker.zone, TournamentTree()).put(key, load, worker.max_ticket_tokens)
        self._changed.clear()
