"""The scheduler's decisions: what is offered becomes a lease or goes back, and freed capacity becomes credit.

Plain calls in, effects out; `now` is in s on any clock. Every call that may have changed the capacity of a model ends
with the credit that follows from it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.mesh.v1.queue_pb2 import Head
from penstock.mesh.v1.scheduler_pb2 import LoadReport, PrefixCacheUpdate, Profile, RunningLease, ServedLease
from penstock.mesh.v1.ticket_pb2 import Lease, PoisonReport, Ticket
from penstock.scheduler.credit.credit_book import CreditBook
from penstock.scheduler.credit.grants import credit_grants_for
from penstock.scheduler.credit.virtual_time import VirtualTimeSync
from penstock.scheduler.effects import CatalogUpdate, Decline, Effect, Expect, Place, Revoke, SendVirtualTimes
from penstock.scheduler.fleet.fleet import Fleet
from penstock.scheduler.fleet.worker import Worker, max_tokens_of
from penstock.scheduler.leases import LeaseBook, LeaseEntry
from penstock.scheduler.poison import PoisonReports
from penstock.scheduler.reports.pool_stats import PoolStatsReports
from penstock.scheduler.reports.service_reports import ServiceReports


@dataclass(kw_only=True)
class Dispatcher:
    """One scheduler's workers, leases and credit."""

    leases: LeaseBook
    look_ahead: int = 1  # leases per worker beyond its slots
    express_slot_share: float = 0.0  # of all slots of a model, the most that is kept for urgent tickets
    fleet: Fleet = field(default_factory=Fleet)
    credit_books: dict[str, CreditBook] = field(default_factory=dict)  # by model
    queues: dict[str, None] = field(default_factory=dict)  # in the order in which they joined, so that runs repeat
    pool_stats: PoolStatsReports = field(default_factory=PoolStatsReports)
    virtual_times: VirtualTimeSync = field(default_factory=VirtualTimeSync)
    service_reports: ServiceReports = field(default_factory=ServiceReports)
    poison: PoisonReports = field(default_factory=PoisonReports)
    is_draining: bool = False
    decline_count: int = 0

    def __repr__(self) -> str:
        return f"<Dispatcher {len(self.fleet)} workers, {len(self.leases)} leases, {self.promised_blocks} promised>"

    @property
    def promised_blocks(self) -> int:
        return sum(worker.promised_blocks for worker in self.fleet)

    # What queues do.

    def on_queue_connected(self, queue: str) -> list[Effect]:
        self.queues[queue] = None
        for credit in self.credit_books.values():
            credit.on_queue_connected(queue)
        times = self.virtual_times.updates([queue], self.credit_books)
        return [*times, self._catalog_update(), *self._credit_grants(*self.fleet.models())]

    def on_queue_disconnected(self, queue: str) -> list[Effect]:
        """Its unstarted leases stand: they lapse, or an edge that has them starts them."""
        self.queues.pop(queue, None)
        self.pool_stats.discard(queue)
        self.virtual_times.discard(queue)
        self.service_reports.on_queue_disconnected(queue)
        for credit in self.credit_books.values():
            credit.on_queue_disconnected(queue)
        return self._credit_grants(*self.fleet.models())

    def on_offer(self, queue: str, ticket: Ticket, now: float, *, uses_express_credit: bool = False) -> list[Effect]:
        credit = self._credit_book(ticket.model)
        credit.on_offer(
            queue, max_tokens_of(ticket), is_express=ticket.express, uses_express_credit=uses_express_credit
        )
        former = self.leases.unstarted_for_ticket(ticket.ticket_id)
        if former and former.attempt > ticket.attempt:
            return self._decline(queue, ticket)  # its edge has moved on; this shard has not heard of that yet
        ended = self._end_unstarted([former]) if former else []
        is_barred = self.is_draining or self.poison.is_reported(ticket.fingerprint)  # as its shard is about to hear
        pool = None if is_barred else self.fleet.pools.get(ticket.model)
        worker = pool.choose_worker(ticket) if pool is not None else None
        if worker is None:
            return [*ended, *self._decline(queue, ticket)]
        lease = self._issue(queue, worker, ticket, now)
        if credit.shards[queue].has_waiting:  # its next head is on its way, and says how much more it can use
            return [*ended, *lease]
        return [*ended, *lease, *self._credit_grants(ticket.model)]

    def on_offer_withdrawn(self, queue: str, ticket_ids: Iterable[str]) -> list[Effect]:
        """Clients left: leases that were not started are free again."""
        found = [entry for each in ticket_ids if (entry := self.leases.unstarted_for_ticket(each))]
        return self._revoke([entry for entry in found if entry.queue == queue])

    def on_head(self, queue: str, head: Head) -> list[Effect]:
        self._credit_book(head.model).on_head(queue, head)
        return self._credit_grants(head.model)

    def on_credit_returned(self, queue: str, model: str, tickets: int) -> list[Effect]:
        self._credit_book(model).on_credit_returned(queue, tickets)
        return self._credit_grants(model)

    # What workers do.

    def on_worker_attached(
        self, key: str, worker_id: str, address: str, profile: Profile, *, zone: str = ""
    ) -> list[Effect]:
        """A worker that was here a moment ago, its loss perhaps not noticed, comes with what it was promised."""
        if former := self.fleet.by_worker_id(worker_id):
            self._remove_worker(former)
        if profile.model not in self.fleet.pools:
            self._credit_book(profile.model).reset()
        worker = Worker(key, worker_id, address, profile, self.look_ahead, zone)
        for running in profile.running:
            self._adopt(worker, running)
        self._keep_unstarted(worker)
        self.fleet.add(worker)
        return [self._catalog_update(), *self._on_capacity_freed(profile.model)]

    def on_worker_quarantined(
        self, worker_id: str, address: str, reports: Iterable[PoisonReport], now: float
    ) -> list[Effect]:
        """A worker takes nothing now, and says why; its loss may not have been noticed."""
        former = self.fleet.by_worker_id(worker_id)
        return self.on_poison_reports(address, reports, now) + (self.on_worker_lost(former.key) if former else [])

    def on_worker_lost(self, key: str) -> list[Effect]:
        """What runs on it goes on without us, or its edges notice for themselves and enqueue again."""
        worker = self.fleet.get(key)
        if worker is None:
            return []
        self._remove_worker(worker)
        return [self._catalog_update(), *self._credit_grants(worker.model)]

    def on_load_report(self, key: str, report: LoadReport) -> None:
        self.fleet[key].on_load_report(report)

    def on_lease_started(self, key: str, lease_id: str) -> None:
        if entry := self.leases.start(lease_id, key):
            self.fleet[key].add_unstarted_tokens(-entry.prompt_tokens)  # from now on its own reports count this prompt

    def on_prefix_cache_update(self, key: str, update: PrefixCacheUpdate) -> None:
        prefixes = self.fleet.pools[self.fleet[key].model].prefix_index
        prefixes.apply(key, update.added, update.removed, is_snapshot=update.is_snapshot)

    def on_progress(self, key: str, leases: Iterable[ServedLease]) -> None:
        for each in leases:
            if entry := self.leases.on_worker(each.lease_id, key):
                entry.served_prompt_tokens, entry.served_output_tokens = each.prompt_tokens, each.output_tokens
                entry.served_at_step = self.fleet[key].report.steps
                entry.first_token_after = each.first_token_after if each.HasField("first_token_after") else None
                self.service_reports.record(entry)

    def on_leases_released(
        self, key: str, lease_ids: Iterable[str], served: Iterable[ServedLease] = ()
    ) -> list[Effect]:
        self.on_progress(key, served)
        worker = self.fleet[key]
        for lease_id in lease_ids:
            if entry := self.leases.on_worker(lease_id, key):
                self._end_lease(entry)
            worker.release(lease_id)  # it may have come along with the worker
        return [
            *self.service_reports.pop_for(self._credit_book(worker.model).sole_waiting_shard, worker),
            *self._on_capacity_freed(worker.model),
        ]

    def on_poison_reports(self, address: str, reports: Iterable[PoisonReport], now: float) -> list[Effect]:
        return [self._catalog_update()] if self.poison.apply(address, reports, now) else []

    # What time does.

    def tick(self, now: float) -> list[Effect]:
        """Take back leases that were not started in time; to be called several times a second."""
        effects = self._revoke(self.leases.expired(now))
        for model, credit in self.credit_books.items():
            if credit.has_waiting:
                credit.tick()
                effects += self._credit_grants(model)
        effects += [self._catalog_update()] if self.poison.expire(now) else []
        paces = self.pool_stats.updates(self.queues, self.fleet.pools, self.leases.leases, now)
        return [*effects, *paces, *self._virtual_time_updates(), *self.service_reports.pop_all(self.queues, now)]

    def _virtual_time_updates(self) -> list[SendVirtualTimes]:
        return self.virtual_times.updates(self.queues, self.credit_books) if len(self.queues) > 1 else []

    def drain(self) -> None:
        """Give no more credit and decline what is offered yet."""
        self.is_draining = True

    def _catalog_update(self) -> CatalogUpdate:
        return CatalogUpdate(self.fleet.catalog(), self.poison.merged())

    # Leases.

    def _issue(self, queue: str, worker: Worker, ticket: Ticket, now: float) -> list[Effect]:
        entry = LeaseEntry(
            lease_id=self.leases.new_id(),
            ticket_id=ticket.ticket_id,
            attempt=ticket.attempt,
            queue=queue,
            worker=worker.key,
            worker_id=worker.worker_id,
            kv_blocks=worker.blocks_for(ticket),
            prompt_tokens=ticket.prompt_tokens - self.fleet.pools[ticket.model].cached_tokens(worker, ticket),
            predicted_output_tokens=ticket.predicted_output_tokens,
            is_express=ticket.express,
            expires_at=self.leases.expiry_from(now),
        )
        self.leases.add(entry)
        worker.promise(entry.lease_id, entry.kv_blocks)
        worker.add_unstarted_tokens(entry.prompt_tokens)
        lease = self._lease_message(entry, worker.address)
        return [Expect(worker.key, lease), Place(queue, lease)]

    def _lease_message(self, entry: LeaseEntry, address: str) -> Lease:
        return Lease(
            lease_id=entry.lease_id,
            ticket_id=entry.ticket_id,
            worker_id=entry.worker_id,
            worker_address=address,
            attempt=entry.attempt,
            queue_id=entry.queue,
            ttl=self.leases.ttl_frame,
            express=entry.is_express,
        )

    def _decline(self, queue: str, ticket: Ticket) -> list[Effect]:
        self.decline_count += 1
        pool = self.fleet.pools.get(ticket.model)
        if pool is not None and not self.is_draining and not pool.can_ever_run(ticket):
            return [Decline(queue, ticket.ticket_id, "NO_WORKER"), *self._credit_grants(ticket.model)]
        self._credit_book(ticket.model).on_credit_voided(queue)
        return [Decline(queue, ticket.ticket_id, "NO_CAPACITY"), *self._credit_grants(ticket.model)]

    def _revoke(self, entries: list[LeaseEntry]) -> list[Effect]:
        models = {worker.model for entry in entries if (worker := self.fleet.get(entry.worker))}
        return [*self._end_unstarted(entries), *self._on_capacity_freed(*sorted(models))]

    def _end_unstarted(self, entries: list[LeaseEntry]) -> list[Effect]:
        for entry in entries:
            self._end_lease(entry)
        return [Revoke(entry.worker, entry.lease_id) for entry in entries if entry.worker in self.fleet]

    def _end_lease(self, entry: LeaseEntry) -> None:
        self._close_lease(entry)
        if worker := self.fleet.get(entry.worker):
            worker.release(entry.lease_id)
            if not entry.is_started:
                worker.add_unstarted_tokens(-entry.prompt_tokens)

    def _close_lease(self, entry: LeaseEntry) -> None:
        self.leases.end(entry)
        self.service_reports.record(entry, ended=True)

    # Workers.

    def _adopt(self, worker: Worker, running: RunningLease) -> None:
        """Take over what runs on a worker that attaches, whoever granted it."""
        worker.promise(running.lease_id, running.kv_blocks)
        if entry := self.leases.leases.get(running.lease_id):
            entry.worker = worker.key
            self.leases.start(entry.lease_id, worker.key)
        elif running.ticket_id:
            entry = LeaseEntry(
                lease_id=running.lease_id,
                ticket_id=running.ticket_id,
                attempt=running.attempt,
                queue=running.queue_id,
                worker=worker.key,
                worker_id=worker.worker_id,
                kv_blocks=running.kv_blocks,
                is_started=True,
            )
            self.leases.adopt(entry)
            self.service_reports.record(entry)

    def _keep_unstarted(self, worker: Worker) -> None:
        """Keep the promises of leases that may still start on a worker that attaches again."""
        for entry in self.leases.unstarted_on_worker(worker.worker_id):
            entry.worker = worker.key
            worker.promise(entry.lease_id, entry.kv_blocks)
            worker.add_unstarted_tokens(entry.prompt_tokens)

    def _remove_worker(self, worker: Worker) -> None:
        """Leases that were not started stay until they lapse: the worker may be back in time for them."""
        self.fleet.remove(worker)
        for lease_id in list(worker.promised):
            entry = self.leases.on_worker(lease_id, worker.key)
            if entry and entry.is_started:
                self._close_lease(entry)
        if worker.model not in self.fleet.pools:
            self._credit_book(worker.model).reset()

    # Credit.

    def _credit_book(self, model: str) -> CreditBook:
        found = self.credit_books.get(model)
        if found is None:
            found = self.credit_books[model] = CreditBook(self.queues, self.express_slot_share)
        return found

    def _on_capacity_freed(self, *models: str) -> list[Effect]:
        for model in models:
            self._credit_book(model).on_capacity_changed()
        return self._credit_grants(*models)

    def _credit_grants(self, *models: str) -> list[Effect]:
        if self.is_draining:
            return []
        pools = self.fleet.pools
        return [
            each for model in models for each in credit_grants_for(model, pools.get(model), self._credit_book(model))
        ]
