"""The scheduler's decisions: what is offered becomes a lease or goes back, and freed capacity becomes credit.

Plain calls in, effects out; `now` is in s on any clock. Every call that may have changed the capacity of a model ends
with the credit that follows from it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.mesh.v1.queue_pb2 import Head
from penstock.mesh.v1.scheduler_pb2 import CacheNews, Profile, Report, RunningLease, ServedLease
from penstock.mesh.v1.ticket_pb2 import Blame, Lease, Ticket
from penstock.scheduler.blames import BlameBook
from penstock.scheduler.credit import CreditBook
from penstock.scheduler.effects import Catalog, Decline, Effect, Expect, Place, Revoke, TellTimes
from penstock.scheduler.fleet import Fleet
from penstock.scheduler.granting import credit_for
from penstock.scheduler.leases import LeaseBook, LeaseEntry
from penstock.scheduler.pace import PaceBook
from penstock.scheduler.served import ServedBook
from penstock.scheduler.times import TimeBook
from penstock.scheduler.worker import Worker, tokens_of


@dataclass(kw_only=True)
class Dispatcher:
    """One scheduler's workers, leases and credit."""

    leases: LeaseBook
    look_ahead: int = 1  # leases per worker beyond its slots
    reserve_share: float = 0.0  # of all slots of a model, the most that is kept for urgent tickets
    fleet: Fleet = field(default_factory=Fleet)
    credits: dict[str, CreditBook] = field(default_factory=dict)  # by model
    queues: dict[str, None] = field(default_factory=dict)  # in the order in which they joined, so that runs repeat
    paces: PaceBook = field(default_factory=PaceBook)
    times: TimeBook = field(default_factory=TimeBook)
    served: ServedBook = field(default_factory=ServedBook)
    blames: BlameBook = field(default_factory=BlameBook)
    is_draining: bool = False
    declines: int = 0

    def __repr__(self) -> str:
        return f"<Dispatcher {len(self.fleet)} workers, {len(self.leases)} leases, {self.promised_blocks} promised>"

    @property
    def promised_blocks(self) -> int:
        return sum(worker.promised_blocks for worker in self.fleet)

    # What queues do.

    def queue_joined(self, queue: str) -> list[Effect]:
        self.queues[queue] = None
        for credit in self.credits.values():
            credit.joined(queue)
        times = self.times.news([queue], self.credits)
        return [*times, self._catalog(), *self._grant(*self.fleet.models())]

    def queue_lost(self, queue: str) -> list[Effect]:
        """Its unstarted leases stand: they lapse, or an edge that has them starts them."""
        self.queues.pop(queue, None)
        self.paces.forget(queue)
        self.times.forget(queue)
        self.served.lost(queue)
        for credit in self.credits.values():
            credit.lost(queue)
        return self._grant(*self.fleet.models())

    def offer(self, queue: str, ticket: Ticket, now: float, *, on_urgent_credit: bool = False) -> list[Effect]:
        credit = self._credit(ticket.model)
        credit.offered(queue, tokens_of(ticket), is_urgent=ticket.urgent, on_urgent_credit=on_urgent_credit)
        former = self.leases.unstarted_of(ticket.ticket_id)
        if former and former.attempt > ticket.attempt:
            return self._decline(queue, ticket)  # its edge has moved on; this shard has not heard of that yet
        ended = self._end_unstarted([former]) if former else []
        is_barred = self.is_draining or self.blames.names(ticket.fingerprint)  # as its shard is about to hear
        pool = None if is_barred else self.fleet.pools.get(ticket.model)
        worker = pool.place(ticket) if pool is not None else None
        if worker is None:
            return [*ended, *self._decline(queue, ticket)]
        lease = self._issue(queue, worker, ticket, now)
        if credit.shards[queue].waits:  # its next head is on its way, and says how much more it can use
            return [*ended, *lease]
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

    def worker_attached(
        self, key: str, worker_id: str, address: str, profile: Profile, *, zone: str = ""
    ) -> list[Effect]:
        """A worker that was here a moment ago, its loss perhaps not noticed, comes with what it was promised."""
        if former := self.fleet.named(worker_id):
            self._forget(former)
        if profile.model not in self.fleet.pools:
            self._credit(profile.model).reset()
        worker = Worker(key, worker_id, address, profile, self.look_ahead, zone)
        for running in profile.running:
            self._adopt(worker, running)
        self._keep_unstarted(worker)
        self.fleet.add(worker)
        return [self._catalog(), *self._freed(profile.model)]

    def worker_apart(self, worker_id: str, address: str, blames: Iterable[Blame], now: float) -> list[Effect]:
        """A worker takes nothing now, and says why; its loss may not have been noticed."""
        former = self.fleet.named(worker_id)
        return self.blamed(address, blames, now) + (self.worker_lost(former.key) if former else [])

    def worker_lost(self, key: str) -> list[Effect]:
        """What runs on it goes on without us, or its edges notice for themselves and enqueue again."""
        worker = self.fleet.get(key)
        if worker is None:
            return []
        self._forget(worker)
        return [self._catalog(), *self._grant(worker.model)]

    def report(self, key: str, report: Report) -> None:
        self.fleet[key].hear(report)

    def started(self, key: str, lease_id: str) -> None:
        if entry := self.leases.start(lease_id, key):
            self.fleet[key].expect(-entry.prompt_tokens)  # from now on its own reports count this prompt

    def cache_changed(self, key: str, news: CacheNews) -> None:
        prefixes = self.fleet.pools[self.fleet[key].model].prefixes
        prefixes.change(key, news.added, news.removed, anew=news.anew)

    def progress(self, key: str, leases: Iterable[ServedLease]) -> None:
        for each in leases:
            if entry := self.leases.of(each.lease_id, key):
                entry.prompt_served, entry.output_served = each.prompt_tokens, each.output_tokens
                entry.served_at = self.fleet[key].report.steps
                entry.first_token_after = each.first_token_after if each.HasField("first_token_after") else None
                self.served.note(entry)

    def released(self, key: str, lease_ids: Iterable[str], served: Iterable[ServedLease] = ()) -> list[Effect]:
        self.progress(key, served)
        worker = self.fleet[key]
        for lease_id in lease_ids:
            if entry := self.leases.of(lease_id, key):
                self._end(entry)
            worker.release(lease_id)  # it may have come along with the worker
        return [*self.served.take_for(self._credit(worker.model).only_waiting, worker), *self._freed(worker.model)]

    def blamed(self, address: str, blames: Iterable[Blame], now: float) -> list[Effect]:
        return [self._catalog()] if self.blames.hear(address, blames, now) else []

    # What time does.

    def tick(self, now: float) -> list[Effect]:
        """Take back leases that were not started in time; to be called several times a second."""
        effects = self._revoke(self.leases.lapsed(now))
        for model, credit in self.credits.items():
            if credit.waits:
                credit.tick()
                effects += self._grant(model)
        effects += [self._catalog()] if self.blames.expire(now) else []
        paces = self.paces.news(self.queues, self.fleet.pools, self.leases.leases, now)
        return [*effects, *paces, *self._times(), *self.served.take(self.queues, now)]

    def _times(self) -> list[TellTimes]:
        return self.times.news(self.queues, self.credits) if len(self.queues) > 1 else []

    def drain(self) -> None:
        """Give no more credit and decline what is offered yet."""
        self.is_draining = True

    def _catalog(self) -> Catalog:
        return Catalog(self.fleet.catalog(), self.blames.all())

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
            prompt_tokens=ticket.prompt_tokens - self.fleet.pools[ticket.model].cached(worker, ticket),
            predicted_output=ticket.predicted_output_tokens,
            is_urgent=ticket.urgent,
            expires_at=self.leases.lapses_at(now),
        )
        self.leases.add(entry)
        worker.promise(entry.lease_id, entry.blocks)
        worker.expect(entry.prompt_tokens)
        lease = self._lease(entry, worker.address)
        return [Expect(worker.key, lease), Place(queue, lease)]

    def _lease(self, entry: LeaseEntry, address: str) -> Lease:
        return Lease(
            lease_id=entry.lease_id,
            ticket_id=entry.ticket_id,
            worker_id=entry.worker_id,
            worker_address=address,
            attempt=entry.attempt,
            queue_id=entry.queue,
            ttl=self.leases.ttl_frame,
            urgent=entry.is_urgent,
        )

    def _decline(self, queue: str, ticket: Ticket) -> list[Effect]:
        self.declines += 1
        pool = self.fleet.pools.get(ticket.model)
        if pool is not None and not self.is_draining and not pool.can_ever_run(ticket):
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
        self._close(entry)
        if worker := self.fleet.get(entry.worker):
            worker.release(entry.lease_id)
            if not entry.is_started:
                worker.expect(-entry.prompt_tokens)

    def _close(self, entry: LeaseEntry) -> None:
        self.leases.end(entry)
        self.served.note(entry, ended=True)

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
                blocks=running.kv_blocks,
                is_started=True,
            )
            self.leases.adopt(entry)
            self.served.note(entry)

    def _keep_unstarted(self, worker: Worker) -> None:
        """Keep the promises of leases that may still start on a worker that attaches again."""
        for entry in self.leases.unstarted_on(worker.worker_id):
            entry.worker = worker.key
            worker.promise(entry.lease_id, entry.blocks)
            worker.expect(entry.prompt_tokens)

    def _forget(self, worker: Worker) -> None:
        """Leases that were not started stay until they lapse: the worker may be back in time for them."""
        self.fleet.remove(worker)
        for lease_id in list(worker.promised):
            entry = self.leases.of(lease_id, worker.key)
            if entry and entry.is_started:
                self._close(entry)
        if worker.model not in self.fleet.pools:
            self._credit(worker.model).reset()

    # Credit.

    def _credit(self, model: str) -> CreditBook:
        found = self.credits.get(model)
        if found is None:
            found = self.credits[model] = CreditBook(self.queues, self.reserve_share)
        return found

    def _freed(self, *models: str) -> list[Effect]:
        for model in models:
            self._credit(model).stir()
        return self._grant(*models)

    def _grant(self, *models: str) -> list[Effect]:
        if self.is_draining:
            return []
        pools = self.fleet.pools
        return [each for model in models for each in credit_for(model, pools.get(model), self._credit(model))]
