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
from penstock.scheduler.credit import CreditBook, Grant
from penstock.scheduler.effects import Catalog, Decline, Effect, Expect, GiveCredit, Place, Revoke
from penstock.scheduler.fleet import Fleet, Worker, able
from penstock.scheduler.leases import LeaseBook, LeaseEntry
from penstock.scheduler.placement import LeastLoaded, Placement

NOTHING_FITS = 1  # token; the smallest ticket has two


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
        return f"<Dispatcher {len(self.fleet)} workers, {len(self.leases)} leases, {self.promised_blocks} promised>"

    @property
    def promised_blocks(self) -> int:
        return sum(worker.promised_blocks for worker in self.fleet)

    # What queues do.

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
        self._credit(ticket.model).offered(queue)
        former = self.leases.unstarted_of(ticket.ticket_id)
        if former and former.attempt > ticket.attempt:
            return self._decline(queue, ticket)  # its edge has moved on; this shard has not heard of that yet
        ended = self._end_unstarted([former]) if former else []
        candidates = [] if self.is_draining else able(self.fleet.serving(ticket.model), ticket)
        if not candidates:
            return [*ended, *self._decline(queue, ticket)]
        lease = self._issue(queue, self.placement.choose(candidates, ticket), ticket, now)
        return [*ended, *lease, *self._grant(ticket.model)]

    def recalled(self, queue: str, ticket_ids: Iterable[str]) -> list[Effect]:
        """Clients left: leases that were not started are free again."""
        found = [entry for each in ticket_ids if (entry := self.leases.unstarted_of(each))]
        return self._revoke([entry for entry in found if entry.queue == queue])

    def head(self, queue: str, head: Head) -> list[Effect]:
        self._credit(head.model).head(queue, head)
        return self._grant(head.model)

    def returned(self, queue: str, model: str, tickets: int) -> list[Effect]:
        self._credit(model).returned(queue, tickets)
        return self._grant(model)

    # What workers do.

    def worker_attached(self, key: str, worker_id: str, address: str, profile: Profile) -> list[Effect]:
        """A worker that was here a moment ago, its loss perhaps not noticed, comes with what it was promised."""
        if former := self.fleet.named(worker_id):
            self._forget(former)
        if not self.fleet.serving(profile.model):
            self._credit(profile.model).reset()
        worker = Worker(key, worker_id, address, profile, self.look_ahead)
        for running in profile.running:
            worker.promise(running.lease_id, running.kv_blocks)
        self._adopt(worker)
        self.fleet.add(worker)
        return [Catalog(self.fleet.catalog()), *self._freed(profile.model)]

    def worker_lost(self, key: str) -> list[Effect]:
        """What runs on it goes on without us, or its edges notice for themselves and enqueue again."""
        worker = self.fleet.get(key)
        if worker is None:
            return []
        self._forget(worker)
        return [Catalog(self.fleet.catalog()), *self._grant(worker.model)]

    def report(self, key: str, report: Report) -> None:
        self.fleet[key].report = report

    def started(self, key: str, lease_id: str) -> None:
        if entry := self.leases.start(lease_id, key):
            self.fleet[key].unstarted_tokens -= entry.prompt_tokens  # from now on its own reports count this prompt

    def released(self, key: str, lease_ids: Iterable[str]) -> list[Effect]:
        worker = self.fleet[key]
        for lease_id in lease_ids:
            if entry := self.leases.of(lease_id, key):
                self._end(entry)
            worker.release(lease_id)  # it may have come along with the worker
        return self._freed(worker.model)

    # What time does.

    def tick(self, now: float) -> list[Effect]:
        """Take back leases that were not started in time; to be called several times a second."""
        effects = self._revoke(self.leases.lapsed(now))
        for model, credit in self.credits.items():
            if credit.waits:
                credit.tick()
                effects += self._grant(model)
        return effects

    def drain(self) -> None:
        """Give no more credit and decline what is offered yet."""
        self.is_draining = True

    # Leases.

    def _issue(self, queue: str, worker: Worker, ticket: Ticket, now: float) -> list[Effect]:
        entry = LeaseEntry(
            lease_id=self.leases.new_id(),
            ticket_id=ticket.ticket_id,
            attempt=ticket.attempt,
            queue=queue,
            worker=worker.key,
            worker_id=worker.worker_id,
            blocks=worker.blocks_for(ticket),
            prompt_tokens=ticket.prompt_tokens,
            expires_at=now + self.leases.ttl,
        )
        self.leases.add(entry)
        worker.promise(entry.lease_id, entry.blocks)
        worker.unstarted_tokens += entry.prompt_tokens
        lease = self._lease(entry, worker.address)
        return [Expect(worker.key, lease), Place(queue, lease)]

    def _lease(self, entry: LeaseEntry, address: str) -> Lease:
        lease = Lease(
            lease_id=entry.lease_id,
            ticket_id=entry.ticket_id,
            worker_id=entry.worker_id,
            worker_address=address,
            attempt=entry.attempt,
        )
        lease.ttl.FromTimedelta(timedelta(seconds=self.leases.ttl))
        return lease

    def _decline(self, queue: str, ticket: Ticket) -> list[Effect]:
        self.declines += 1
        serving = self.fleet.serving(ticket.model)
        never = serving and not self.is_draining and not any(worker.can_ever_run(ticket) for worker in serving)
        if never:
            return [Decline(queue, ticket.ticket_id, "NO_WORKER"), *self._grant(ticket.model)]
        self._credit(ticket.model).voided(queue)
        return [Decline(queue, ticket.ticket_id, "NO_CAPACITY"), *self._grant(ticket.model)]

    def _revoke(self, entries: list[LeaseEntry]) -> list[Effect]:
        models = {worker.model for entry in entries if (worker := self.fleet.get(entry.worker))}
        return [*self._end_unstarted(entries), *self._freed(*sorted(models))]

    def _end_unstarted(self, entries: list[LeaseEntry]) -> list[Effect]:
        for entry in entries:
            self._end(entry)
        return [Revoke(entry.worker, entry.lease_id) for entry in entries if entry.worker in self.fleet]

    def _end(self, entry: LeaseEntry) -> None:
        self.leases.end(entry)
        if worker := self.fleet.get(entry.worker):
            worker.release(entry.lease_id)
            if not entry.is_started:
                worker.unstarted_tokens -= entry.prompt_tokens

    # Workers.

    def _adopt(self, worker: Worker) -> None:
        """Keep the promises of leases that may still start on a worker that attaches again."""
        for entry in self.leases.unstarted_on(worker.worker_id):
            entry.worker = worker.key
            if entry.lease_id in worker.promised:
                self.leases.start(entry.lease_id, worker.key)
            else:
                worker.promise(entry.lease_id, entry.blocks)
                worker.unstarted_tokens += entry.prompt_tokens

    def _forget(self, worker: Worker) -> None:
        """Leases that were not started stay until they lapse: the worker may be back in time for them."""
        self.fleet.remove(worker)
        for entry in self.leases.of_worker(worker.key):
            if entry.is_started:
                self.leases.end(entry)
        if not self.fleet.serving(worker.model):
            self._credit(worker.model).reset()

    # Credit.

    def _credit(self, model: str) -> CreditBook:
        if model not in self.credits:
            self.credits[model] = CreditBook(self.queues)
        return self.credits[model]

    def _freed(self, *models: str) -> list[Effect]:
        for model in models:
            self._credit(model).stir()
        return self._grant(*models)

    def _grant(self, *models: str) -> list[Effect]:
        if self.is_draining:
            return []
        return [effect for model in models for effect in self._grant_one(model)]

    def _grant_one(self, model: str) -> list[Effect]:
        room, largest = self.fleet.capacity(model)
        bound = max(NOTHING_FITS, largest)
        grants = self._credit(model).grants(room, bound)
        rate = self.fleet.tokens_per_second(model) if grants else 0.0
        return [_give(grant, model, bound, rate) for grant in grants]


def _give(grant: Grant, model: str, largest: int, rate: float) -> GiveCredit:
    return GiveCredit(
        queue=grant.queue,
        model=model,
        tickets=grant.tickets,
        max_tokens=0 if grant.is_unbounded else largest,
        tokens_per_second=rate,
        once=grant.once,
    )
