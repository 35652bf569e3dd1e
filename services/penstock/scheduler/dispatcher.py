"""The scheduler's decisions: what is offered becomes a lease or goes back, and freed capacity becomes credit.

Plain calls in, effects out; `now` is in s on any clock. Every call that may have changed the capacity of a model ends
with the credit that follows from it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from penstock.mesh.v1.queue_pb2 import Head
from penstock.mesh.v1.scheduler_pb2 import Profile, Report
from penstock.mesh.v1.ticket_pb2 import Lease, Ticket
from penstock.scheduler.credit import CreditBook
from penstock.scheduler.effects import Catalog, Decline, Effect, Expect, GiveCredit, Place, Revoke
from penstock.scheduler.fleet import Fleet, Worker, workers_that
from penstock.scheduler.leases import LeaseBook, LeaseEntry
from penstock.scheduler.placement import LeastLoaded, Placement


@dataclass(kw_only=True)
class Dispatcher:
    """One scheduler's workers, leases and credit."""

    leases: LeaseBook
    look_ahead: int = 1  # leases per worker beyond its slots
    placement: Placement = field(default_factory=LeastLoaded)
    fleet: Fleet = field(default_factory=Fleet)
    credits: dict[str, CreditBook] = field(default_factory=dict)  # by model
    queues: set[str] = field(default_factory=set)
    is_draining: bool = False
    declines: int = 0

    def __repr__(self) -> str:
        blocks = sum(worker.promised_blocks for worker in self.fleet.values())
        return f"<Dispatcher {len(self.fleet)} workers, {len(self.leases)} leases, {blocks} blocks promised>"

    # --------------------------------------------------------------------------------------------------------- queues

    def queue_joined(self, queue: str) -> list[Effect]:
        self.queues.add(queue)
        for credit in self.credits.values():
            credit.joined(queue)
        return [Catalog(self.fleet.catalog()), *self._grant(*self.fleet.models())]

    def queue_lost(self, queue: str) -> list[Effect]:
        """Its unstarted leases stand: they lapse, or an edge that has them starts them."""
        self.queues.discard(queue)
        for credit in self.credits.values():
            credit.lost(queue)
        return self._grant(*self.fleet.models())

    def offer(self, queue: str, ticket: Ticket, now: float) -> list[Effect]:
        self._credit(ticket.model).used(queue)
        able = [] if self.is_draining else workers_that(self.fleet.serving(ticket.model), ticket)
        if not able:
            return self._decline(queue, ticket)
        worker = self.placement.choose(able, ticket)
        entry = self.leases.issue(ticket.ticket_id, queue, worker.key, ticket.prompt_tokens, now)
        worker.promise(entry.lease_id, worker.blocks_for(ticket))
        worker.unstarted_tokens += ticket.prompt_tokens
        lease = self._lease(entry, worker, ticket.attempt)
        return [Expect(worker.key, lease), Place(queue, lease), *self._grant(ticket.model)]

    def recalled(self, ticket_ids: Iterable[str]) -> list[Effect]:
        """Clients left: leases that were not started are free again."""
        return self._revoke([entry for each in ticket_ids if (entry := self.leases.unstarted_of(each))])

    def head(self, queue: str, head: Head) -> list[Effect]:
        self._credit(head.model).head(queue, head)
        return self._grant(head.model)

    def returned(self, queue: str, model: str, tickets: int) -> list[Effect]:
        self._credit(model).returned(queue, tickets)
        return []

    # -------------------------------------------------------------------------------------------------------- workers

    def worker_attached(self, key: str, worker_id: str, address: str, profile: Profile) -> list[Effect]:
        worker = Worker(key, worker_id, address, profile, self.look_ahead)
        for running in profile.running:
            worker.promise(running.lease_id, running.kv_blocks)
        self.fleet[key] = worker
        return [Catalog(self.fleet.catalog()), *self._grant(profile.model)]

    def worker_lost(self, key: str) -> list[Effect]:
        """Edges notice for themselves and enqueue again."""
        worker = self.fleet.pop(key, None)
        if worker is None:
            return []
        for entry in self.leases.of_worker(key):
            self.leases.end(entry.lease_id)
        return [Catalog(self.fleet.catalog()), *self._grant(worker.profile.model)]

    def report(self, key: str, report: Report) -> list[Effect]:
        worker = self.fleet[key]
        worker.report = report
        return self._grant(worker.profile.model)

    def started(self, lease_id: str) -> list[Effect]:
        if entry := self.leases.start(lease_id):
            self._forget_prompt(entry)
        return []

    def released(self, key: str, lease_ids: Iterable[str]) -> list[Effect]:
        worker = self.fleet[key]
        for lease_id in lease_ids:
            self._free(worker, lease_id)
        return self._grant(worker.profile.model)

    # ----------------------------------------------------------------------------------------------------------- time

    def tick(self, now: float) -> list[Effect]:
        """Take back leases that were not started in time; to be called several times a second."""
        return self._revoke(self.leases.lapsed(now))

    def drain(self) -> None:
        """Give no more credit and decline what is offered yet."""
        self.is_draining = True

    # --------------------------------------------------------------------------------------------------------- inside

    def _credit(self, model: str) -> CreditBook:
        if model not in self.credits:
            self.credits[model] = CreditBook()
            for queue in self.queues:
                self.credits[model].joined(queue)
        return self.credits[model]

    def _grant(self, *models: str) -> list[Effect]:
        if self.is_draining:
            return []
        return [effect for model in models for effect in self._grant_one(model)]

    def _grant_one(self, model: str) -> list[Effect]:
        grants = self._credit(model).grants(self.fleet.room(model))
        return [self._give(grant.queue, model, grant.tickets) for grant in grants]

    def _give(self, queue: str, model: str, tickets: int) -> GiveCredit:
        return GiveCredit(queue, model, tickets, self.fleet.largest(model), self.fleet.tokens_per_second(model))

    def _decline(self, queue: str, ticket: Ticket) -> list[Effect]:
        """Say how large a ticket may be now, before the queue offers the same again."""
        self.declines += 1
        can_run = self.is_draining or any(each.can_ever_run(ticket) for each in self.fleet.serving(ticket.model))
        reason = "NO_CAPACITY" if can_run else "NO_WORKER"
        told = self._give(queue, ticket.model, 0)
        return [told, Decline(queue, ticket.ticket_id, reason), *self._grant(ticket.model)]

    def _lease(self, entry: LeaseEntry, worker: Worker, attempt: int) -> Lease:
        lease = Lease(
            lease_id=entry.lease_id,
            ticket_id=entry.ticket_id,
            worker_id=worker.worker_id,
            worker_address=worker.address,
            attempt=attempt,
        )
        lease.ttl.FromTimedelta(timedelta(seconds=self.leases.ttl))
        return lease

    def _revoke(self, entries: Iterable[LeaseEntry]) -> list[Effect]:
        effects: list[Effect] = []
        models: set[str] = set()
        for entry in entries:
            if worker := self.fleet.get(entry.worker):
                self._free(worker, entry.lease_id)
                effects.append(Revoke(worker.key, entry.lease_id))
                models.add(worker.profile.model)
        return [*effects, *self._grant(*sorted(models))]

    def _free(self, worker: Worker, lease_id: str) -> None:
        worker.release(lease_id)
        entry = self.leases.end(lease_id)
        if entry and not entry.is_started:
            self._forget_prompt(entry)

    def _forget_prompt(self, entry: LeaseEntry) -> None:
        """From now on the worker's own report counts this prompt."""
        if worker := self.fleet.get(entry.worker):
            worker.unstarted_tokens -= entry.prompt_tokens
