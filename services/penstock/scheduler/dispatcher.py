"""The dispatcher: decides whether an offered ticket is leased or declined, and turns free capacity into credit.

It takes plain calls and returns effects; `now` is in s on any clock. Every call that may change the capacity of a model
returns the credit that follows from the change.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.mesh.v1.queue_pb2 import Head
from penstock.mesh.v1.scheduler_pb2 import LoadReport, PrefixCacheUpdate, Profile, Progress, ServedLease
from penstock.mesh.v1.ticket_pb2 import PoisonReport, Ticket
from penstock.scheduler.credit.credit_books import CreditBooks
from penstock.scheduler.credit.virtual_time import VirtualTimeSync
from penstock.scheduler.effects import CatalogUpdate, Decline, Effect
from penstock.scheduler.fleet.fleet import Fleet
from penstock.scheduler.fleet.worker import Worker, max_tokens_of
from penstock.scheduler.lease_transitions import LeaseTransitions
from penstock.scheduler.leases import LeaseBook, LeaseEntry
from penstock.scheduler.poison import PoisonReports
from penstock.scheduler.reports.lease_progress import LeaseProgressReports
from penstock.scheduler.reports.placed_prompts import PlacedPromptReports
from penstock.scheduler.reports.pool_stats import PoolStatsReports
from penstock.scheduler.reports.service_reports import ServiceReports
from penstock.v1.inference_pb2 import Priority

# s between two ticks under pressure, and without it. Shards trust statistics for twice the longer one.
TICK_INTERVAL_S = 0.1
REST_TICK_INTERVAL_S = 1.0


@dataclass(kw_only=True)
class Dispatcher:
    """Workers, leases and credit of one scheduler."""

    leases: LeaseBook
    look_ahead: int = 1  # leases per worker beyond its slots
    express_slot_share: float = 0.0  # largest share of a model's slots that is kept free for express tickets
    fleet: Fleet = field(default_factory=Fleet)
    queues: dict[str, None] = field(default_factory=dict)  # connected shards, in order of arrival: runs are repeatable
    pool_stats: PoolStatsReports = field(default_factory=PoolStatsReports)
    virtual_times: VirtualTimeSync = field(default_factory=VirtualTimeSync)
    placed_prompts: PlacedPromptReports = field(default_factory=PlacedPromptReports)
    service_reports: ServiceReports = field(default_factory=ServiceReports)
    poison: PoisonReports = field(default_factory=PoisonReports)
    is_draining: bool = False
    decline_count: int = 0
    expired_lease_count: int = 0
    preempted_lease_count: int = 0
    credit_books: CreditBooks = field(init=False)
    _ticked_at: float = -math.inf  # s
    # Whether shards need reports and credit soon: a ticket waits, a model has little free capacity, a lease was not
    # started at the last tick, or the shards or workers have changed since.
    _is_pressed: bool = True
    _is_catalog_due: bool = False  # the number of workers of a model has changed since the catalog was sent
    _transitions: LeaseTransitions = field(init=False)
    _progress: LeaseProgressReports = field(init=False)

    def __post_init__(self) -> None:
        self.credit_books = CreditBooks(self.queues, self.fleet, self.express_slot_share)
        self._transitions = LeaseTransitions(self.leases, self.fleet, self.service_reports)
        self._progress = LeaseProgressReports(self.leases, self.service_reports)

    def __repr__(self) -> str:
        return f"<Dispatcher {len(self.fleet)} workers, {len(self.leases)} leases, {self.promised_blocks} promised>"

    @property
    def promised_blocks(self) -> int:
        return sum(worker.promised_blocks for worker in self.fleet)

    # Events of queue shards.

    def on_queue_connected(self, queue: str) -> list[Effect]:
        self.queues[queue] = None
        self._is_pressed = True
        self.service_reports.on_queue_connected(queue)
        self.credit_books.on_queue_connected(queue)
        times = self.virtual_times.updates([queue], self.credit_books)
        return [*times, self._catalog_update(), *self.credit_books.grants(*self.fleet.models())]

    def on_queue_disconnected(self, queue: str) -> list[Effect]:
        """Forget a shard. Its unstarted leases stay: they expire unless an edge starts them."""
        self.queues.pop(queue, None)
        self._is_pressed = True
        self.pool_stats.discard(queue)
        self.virtual_times.discard(queue)
        self.service_reports.on_queue_disconnected(queue)
        self.credit_books.on_queue_disconnected(queue)
        return self.credit_books.grants(*self.fleet.models())

    def on_offer(self, queue: str, ticket: Ticket, now: float, *, uses_express_credit: bool = False) -> list[Effect]:
        credit = self.credit_books[ticket.model]
        credit.on_offer(
            queue,
            max_tokens_of(ticket),
            priority=ticket.priority,
            is_express=ticket.express,
            uses_express_credit=uses_express_credit,
        )
        former = self.leases.unstarted_for_ticket(ticket.ticket_id)
        if former and former.attempt > ticket.attempt:
            return self._decline(queue, ticket)  # the edge has enqueued a newer attempt at another shard
        ended = self._transitions.end_unstarted([former]) if former else []
        pool = None if self.is_draining else self.fleet.pools.get(ticket.model)
        placed = pool.place(ticket) if pool is not None else None
        if pool is None or placed is None:
            return [*ended, *self._decline(queue, ticket)]
        preempted = [] if ticket.priority == Priority.PRIORITY_BATCH else self._transitions.preempt(placed.worker)
        self.preempted_lease_count += len(preempted)
        lease = [*preempted, *self._transitions.issue(queue, placed, ticket, now)]
        self._is_pressed = self._is_pressed or pool.is_busy
        if len(self.queues) > 1:
            self.placed_prompts.record(queue, placed.worker.worker_id, placed.new_tokens, ticket, now)
            lease += self.placed_prompts.pop_due(self.queues, now)
        if credit.shards[queue].has_waiting:  # the next head is under way; more credit follows from it
            return [*ended, *lease]
        return [*ended, *lease, *self.credit_books.grants(ticket.model)]

    def on_offer_withdrawn(self, queue: str, ticket_ids: Iterable[str]) -> list[Effect]:
        """End the leases of cancelled tickets that were not started."""
        entries = [entry for each in ticket_ids if (entry := self.leases.unstarted_for_ticket(each))]
        return self._revoke([entry for entry in entries if entry.queue == queue])

    def on_head(self, queue: str, head: Head, now: float) -> list[Effect]:
        self._is_pressed = self._is_pressed or head.waiting > 0
        self.credit_books[head.model].on_head(queue, head, now)
        return self.credit_books.grants(head.model)

    def on_credit_returned(self, queue: str, model: str, tickets: int) -> list[Effect]:
        self.credit_books[model].on_credit_returned(queue, tickets)
        return self.credit_books.grants(model)

    # Events of workers.

    def on_worker_attached(
        self, key: str, worker_id: str, address: str, profile: Profile, *, zone: str = ""
    ) -> list[Effect]:
        """Add a worker with the leases that it runs; it replaces a former stream of the worker."""
        if former := self.fleet.by_worker_id(worker_id):
            self._remove_worker(former)
        worker = Worker(key, worker_id, address, profile, self.look_ahead, zone)
        is_new_model = worker.model not in self.fleet.pools
        if is_new_model:
            self.credit_books[worker.model].reset()
        self._transitions.on_worker_attached(worker)
        self.fleet.add(worker)
        catalog = self._on_workers_changed(at_once=is_new_model)
        return [*catalog, *self.credit_books.on_capacity_freed(worker.model)]

    def on_worker_quarantined(
        self, worker_id: str, address: str, reports: Iterable[PoisonReport], now: float
    ) -> list[Effect]:
        """Apply the poison reports of a worker that takes no tickets, and remove its former stream."""
        former = self.fleet.by_worker_id(worker_id)
        return self.on_poison_reports(address, reports, now) + (self.on_worker_lost(former.key) if former else [])

    def on_worker_lost(self, key: str) -> list[Effect]:
        """Remove a worker. Its running leases continue, or their edges notice the loss and enqueue again."""
        worker = self.fleet.get(key)
        if worker is None:
            return []
        self._remove_worker(worker)
        catalog = self._on_workers_changed(at_once=worker.model not in self.fleet.pools)
        return [*catalog, *self.credit_books.grants(worker.model)]

    def on_load_report(self, key: str, report: LoadReport) -> None:
        self.fleet[key].on_load_report(report)

    def on_lease_started(self, key: str, lease_id: str) -> None:
        self._transitions.start(self.fleet[key], lease_id)

    def on_prefix_cache_update(self, key: str, update: PrefixCacheUpdate) -> None:
        prefixes = self.fleet.pools[self.fleet[key].model].prefix_index
        prefixes.apply(key, update.added, update.removed, is_snapshot=update.is_snapshot)

    def on_progress(self, key: str, progress: Progress) -> None:
        self._progress.apply(self.fleet[key], progress)

    def on_leases_released(
        self, key: str, lease_ids: Iterable[str], served: Iterable[ServedLease] = (), steps: int = 0
    ) -> list[Effect]:
        """End leases with their service. `steps`: engine steps of the worker; 0: unknown."""
        worker = self.fleet[key]
        worker.on_steps(steps)
        self._progress.apply_served(worker, served)
        for lease_id in lease_ids:
            if entry := self.leases.on_worker(lease_id, key):
                self._transitions.end(entry)
            worker.release(lease_id)  # the lease may be one that the worker brought from another scheduler
        return [
            *self.service_reports.pop_for(self.credit_books[worker.model].sole_waiting_shard, worker),
            *self.credit_books.on_capacity_freed(worker.model),
        ]

    def on_poison_reports(self, address: str, reports: Iterable[PoisonReport], now: float) -> list[Effect]:
        return [self._catalog_update()] if self.poison.apply(address, reports, now) else []

    # Time.

    @property
    def next_tick_at(self) -> float:
        """Return the s at which the next tick is due. Any event may make it earlier."""
        return self._ticked_at + (TICK_INTERVAL_S if self._is_pressed else REST_TICK_INTERVAL_S)

    def tick(self, now: float) -> list[Effect]:
        """Revoke leases that were not started in time, and send reports. Due at `next_tick_at`."""
        return [*self.tick_fleet(now), *self.tick_reports(now)]

    def tick_fleet(self, now: float) -> list[Effect]:
        """Do the first part of `tick`, so that a service can run the parts in turns of their own."""
        self._ticked_at = now
        self.fleet.tick(now)
        expired = self.leases.expired(now)
        self.expired_lease_count += len(expired)
        effects = [*self._revoke(expired), *self.credit_books.tick()]
        if self.poison.expire(now) or self._is_catalog_due:
            effects.append(self._catalog_update())
        stats = self.pool_stats.updates(self.queues, self.fleet.pools, self.leases.leases, now)
        # With one shard there is no virtual time of other shards.
        times = self.virtual_times.updates(self.queues, self.credit_books) if len(self.queues) > 1 else []
        placed = self.placed_prompts.pop_due(self.queues, now)
        return [*effects, *placed, *stats, *times]

    def tick_reports(self, now: float) -> list[Effect]:
        """Do the second part of `tick`: the first slice of the reports of leases."""
        reports: list[Effect] = [*self.service_reports.pop_due(self.queues, now)]
        self._is_pressed = (
            self.has_due_work
            or self.leases.unstarted_count > 0
            or any(book.has_waiting for book in self.credit_books.values())
            or any(pool.is_busy for pool in self.fleet.pools.values())
        )
        return reports

    @property
    def has_due_work(self) -> bool:
        """Whether `run_slice` has to be called before the next tick."""
        return self.service_reports.is_slice_due

    def run_slice(self) -> list[Effect]:
        """Do a bounded part of the work that is due. A slice takes some milliseconds."""
        return [*self.service_reports.pop_slice(self.queues)]

    def drain(self) -> None:
        """Grant no more credit, and decline offers."""
        self.is_draining = self.credit_books.is_closed = True

    def _on_workers_changed(self, *, at_once: bool) -> list[Effect]:
        """Send the catalog at once, or at the next tick: many workers attach at once after the start of a scheduler."""
        self._is_catalog_due = self._is_pressed = True
        return [self._catalog_update()] if at_once else []

    def _catalog_update(self) -> CatalogUpdate:
        self._is_catalog_due = False
        return CatalogUpdate(self.fleet.catalog(), self.poison.merged())

    # Steps.

    def _decline(self, queue: str, ticket: Ticket) -> list[Effect]:
        self.decline_count += 1
        pool = self.fleet.pools.get(ticket.model)
        if pool is not None and not self.is_draining and not pool.can_ever_run(ticket):
            return [Decline(queue, ticket.ticket_id, "NO_WORKER"), *self.credit_books.grants(ticket.model)]
        self.credit_books[ticket.model].on_credit_voided(queue)
        return [Decline(queue, ticket.ticket_id, "NO_CAPACITY"), *self.credit_books.grants(ticket.model)]

    def _revoke(self, entries: list[LeaseEntry]) -> list[Effect]:
        models = {worker.model for entry in entries if (worker := self.fleet.get(entry.worker))}
        return [*self._transitions.end_unstarted(entries), *self.credit_books.on_capacity_freed(*sorted(models))]

    def _remove_worker(self, worker: Worker) -> None:
        self.fleet.remove(worker)
        self._transitions.on_worker_removed(worker)
        is_new_model = worker.model not in self.fleet.pools
        if is_new_model:
            self.credit_books[worker.model].reset()
