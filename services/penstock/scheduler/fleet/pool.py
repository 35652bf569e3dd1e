"""The pool of one model: its workers at one scheduler, their totals, and the candidates for a ticket.

Two digests of one name are two models, with a pool each.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from penstock.mesh.limits.bounds import COUNT, at_most
from penstock.mesh.v1.scheduler_pb2 import Profile
from penstock.mesh.v1.ticket_pb2 import CatalogEntry, Ticket
from penstock.scheduler.fleet.placement import Placement
from penstock.scheduler.fleet.prefix_index import PrefixIndex
from penstock.scheduler.fleet.prompt_sizes import PromptSizes
from penstock.scheduler.fleet.tournament_tree import TournamentTree
from penstock.scheduler.fleet.worker import CacheTurnover, CapacityTotals, PoolRates, Worker, max_tokens_of
from penstock.v1.inference_pb2 import Priority

EMPTY_TOTALS = CapacityTotals()
MAX_CANDIDATES = 4  # least loaded workers compared for a ticket, and as many in its zone and with its prefix


class Placed(NamedTuple):
    """The placement of a ticket."""

    worker: Worker
    new_tokens: int  # tokens of the prompt that are not cached at the worker


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
        self._rates = PoolRates()
        self._totals = CapacityTotals()
        self._headroom = 0  # slots
        self._batch_tree = TournamentTree()  # of the workers that can take a batch ticket
        self._batch_leases = 0
        self._counted_batch_leases: dict[str, int] = {}  # by stream
        self.prefix_index = PrefixIndex()
        self.prompt_sizes = PromptSizes()
        self.max_supported_tokens = 0  # tokens of the largest ticket that an empty worker can run

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def add(self, worker: Worker) -> None:
        self._workers[worker.key] = self._by_instance_id[worker.worker_id] = worker
        worker.join_pool(self._turnover, self._rates, self._changed)
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
        self._batch_tree.remove(worker.key)
        self._batch_leases -= self._counted_batch_leases.pop(worker.key)
        worker.leave_pool()
        self._update_max_supported()

    def apply_profile(self, worker: Worker, profile: Profile) -> None:
        """Replace the profile of a worker whose capacity has changed. Its leases remain."""
        worker.apply_profile(profile)
        self._update_max_supported()

    def _update_max_supported(self) -> None:
        self.max_supported_tokens = max((each.max_supported_tokens for each in self), default=0)

    @property
    def totals(self) -> CapacityTotals:
        self._refresh()
        return self._totals

    @property
    def batch_leases(self) -> int:
        """Leases that the workers can take of batch tickets."""
        self._refresh()
        return self._batch_leases

    def keep_headroom(self, slots: int) -> None:
        """Let batch tickets leave so many slots of each worker free. 0: they may take all leases."""
        if slots != self._headroom:
            self._headroom = slots
            for worker in self:
                worker.mark_changed()

    @property
    def max_ticket_tokens(self) -> int:
        """Tokens of the largest ticket that a worker can take now."""
        self._refresh()
        return self._tree.max_free_tokens

    @property
    def is_busy(self) -> bool:
        """Whether at most half of the slots are free, so that shards need recent statistics."""
        totals = self.totals
        return 2 * totals.available_leases <= totals.slots

    def next_worker(self) -> Worker | None:
        """Return the worker that the next ticket would be placed on, full or not; None if the pool is empty."""
        self._refresh()
        found = next(self._tree.search(1), None) or next(self._tree.search(0), None)
        return self._workers[found] if found else None

    def by_load(self) -> Iterator[Worker]:
        """Yield the workers, full or not, least loaded first."""
        self._refresh()
        return (self._workers[key] for key in self._tree.search(0))

    def place(self, ticket: Ticket, among: Collection[str] | None = None) -> Placed | None:
        """Choose the worker for a ticket and record the prompt; None if no worker can take it now.

        A batch ticket leaves headroom if it can. A shard offers one without credit for batch tickets if its class is
        owed a minimum share; then it takes any free lease.

        `among`: keys of the workers that the ticket may go to; None: all.
        """
        self._refresh()
        hashes = list(ticket.prefix_hashes)
        if among is not None:
            new_tokens = self._candidates_in(among, ticket, hashes)
        elif ticket.priority == Priority.PRIORITY_BATCH:
            new_tokens = self._candidates(ticket, hashes, self._batch_tree, self._headroom)
            new_tokens = new_tokens or self._candidates(ticket, hashes, self._tree)
        else:
            new_tokens = self._candidates(ticket, hashes, self._tree)
        if not new_tokens:
            return None
        worker = self._placement.choose(new_tokens, ticket, self.prompt_sizes.delay_share)
        placed = Placed(worker, max(0, new_tokens[worker]))
        self.prompt_sizes.record(placed.new_tokens)
        if hashes:
            self.prefix_index.on_placed(worker.key, hashes)
        return placed

    def _candidates(
        self, ticket: Ticket, hashes: Sequence[int], tree: TournamentTree, headroom: int = 0
    ) -> dict[Worker, int]:
        """Return the prompt tokens that are not cached, by workers that are compared.

        `headroom`: slots that a batch ticket leaves free at its worker.
        """
        found = [*islice(self._with_capacity(ticket, tree, headroom), MAX_CANDIDATES)]
        if len(self._zone_trees) > 1 and (near := self._zone_trees.get(ticket.zone)):
            found += islice(self._with_capacity(ticket, near, headroom), MAX_CANDIDATES)
        if (expected := self._by_instance_id.get(ticket.expected_worker)) and _can_take(expected, ticket, headroom):
            found.append(expected)
        if not hashes:
            return dict.fromkeys(found, ticket.prompt_tokens)
        found += islice(self._with_cached_prefix(ticket, hashes, headroom), MAX_CANDIDATES)
        return self._new_tokens(found, ticket, hashes, headroom)

    def _candidates_in(self, keys: Collection[str], ticket: Ticket, hashes: Sequence[int]) -> dict[Worker, int]:
        """Return the same for those of some workers that can take the ticket."""
        named = (self._workers.get(key) for key in keys)
        return self._new_tokens([each for each in named if each and _can_take(each, ticket, 0)], ticket, hashes, None)

    def _new_tokens(
        self, workers: Sequence[Worker], ticket: Ticket, hashes: Sequence[int], headroom: int | None
    ) -> dict[Worker, int]:
        """Return the prompt tokens that are not cached at each worker.

        The worker of a recent prompt is added if it can take the ticket beside `headroom`; None: no worker is added.
        """
        index, prompt_tokens = self.prefix_index, ticket.prompt_tokens
        expecting, expected_blocks = index.expected_prefix(hashes)
        blocks = {worker: index.cached_blocks(worker.key, hashes) for worker in dict.fromkeys(workers)}
        placed = self._workers.get(expecting)
        if placed and (placed in blocks or (headroom is not None and _can_take(placed, ticket, headroom))):
            blocks[placed] = max(blocks.get(placed, 0), expected_blocks)
        return {worker: prompt_tokens - count * worker.block_size for worker, count in blocks.items()}

    def _with_capacity(self, ticket: Ticket, tree: TournamentTree, headroom: int) -> Iterator[Worker]:
        """Yield the workers that can take a ticket now, least loaded first."""
        avoided = ticket.avoid_workers
        for key in tree.search(max_tokens_of(ticket)):
            worker = self._workers[key]
            if (not avoided or worker.worker_id not in avoided) and _can_take(worker, ticket, headroom):
                yield worker

    def _with_cached_prefix(self, ticket: Ticket, hashes: Sequence[int], headroom: int) -> Iterator[Worker]:
        """Yield the workers that can take a ticket now, out of those with its longest cached prefix."""
        tokens = max_tokens_of(ticket)
        for key in self.prefix_index.workers_with_longest_prefix(hashes):
            worker = self._workers[key]
            if tokens <= worker.max_ticket_tokens and _can_take(worker, ticket, headroom):
                yield worker

    def can_ever_run(self, ticket: Ticket) -> bool:
        return any(worker.can_ever_run(ticket) for worker in self)

    def catalog_entry(self) -> CatalogEntry:
        newest = next(reversed(self._workers.values()))
        return CatalogEntry(
            model=newest.profile.model,
            card_digest=newest.profile.card_digest,
            worker_address=newest.address,
            worker_id=newest.worker_id,
            workers_hint=len(self),
            slots_hint=at_most(sum(worker.profile.slots for worker in self), COUNT),
            context_length=max(worker.profile.context_length for worker in self),
        )

    def _refresh(self) -> None:
        were_known = self._rates.are_known
        for worker in self._changed:
            if worker.are_rates_due:
                worker.refresh_rates()
        if not were_known and self._rates.are_known:
            for worker in self:  # once: workers without reports take the rates of the others
                worker.refresh_rates()
            self._changed[:] = self
        for worker in self._changed:
            worker.is_marked_changed = False
            key, share = worker.key, worker.capacity
            self._totals.replace(self._counted_totals.get(key, EMPTY_TOTALS), share)
            self._counted_totals[key] = share
            load = self._placement.load(worker)
            self._tree.put(key, load, worker.max_ticket_tokens)
            batch_leases = worker.batch_leases(self._headroom)
            batch_load = self._placement.load(worker, for_batch=True)
            self._batch_tree.put(key, batch_load, worker.max_ticket_tokens if batch_leases else 0)
            self._batch_leases += batch_leases - self._counted_batch_leases.get(key, 0)
            self._counted_batch_leases[key] = batch_leases
            if worker.zone:
                self._zone_trees.setdefault(worker.zone, TournamentTree()).put(key, load, worker.max_ticket_tokens)
        self._changed.clear()


def _can_take(worker: Worker, ticket: Ticket, headroom: int) -> bool:
    if ticket.priority == Priority.PRIORITY_BATCH and not worker.batch_leases(headroom):
        return False
    return worker.can_take(ticket)
