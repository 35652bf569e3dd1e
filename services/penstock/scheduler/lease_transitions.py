"""Transitions of leases: issue, end, adoption, and the loss of a worker. Decides nothing about placement or credit."""

from dataclasses import dataclass

from penstock.chassis.garbage import untracked
from penstock.mesh.v1.scheduler_pb2 import RunningLease
from penstock.mesh.v1.ticket_pb2 import Lease, Ticket
from penstock.scheduler.effects import Effect, Expect, Place, Revoke
from penstock.scheduler.fleet.fleet import Fleet
from penstock.scheduler.fleet.pool import Placed
from penstock.scheduler.fleet.worker import Worker
from penstock.scheduler.leases import LeaseBook, LeaseEntry
from penstock.scheduler.reports.service_reports import ServiceReports


@dataclass(slots=True)
class LeaseTransitions:
    """Changes leases together with the promises of their workers and the reports to their shards."""

    leases: LeaseBook
    fleet: Fleet
    service_reports: ServiceReports

    def issue(self, queue: str, placed: Placed, ticket: Ticket, now: float) -> list[Effect]:
        """Lease a placed ticket of shard `queue`."""
        worker = placed.worker
        entry = LeaseEntry(
            lease_id=self.leases.new_id(),
            ticket_id=ticket.ticket_id,
            attempt=ticket.attempt,
            queue=queue,
            worker=worker.key,
            worker_id=worker.worker_id,
            kv_blocks=worker.blocks_for(ticket),
            prompt_tokens=placed.new_tokens,
            predicted_output_tokens=ticket.predicted_output_tokens,
            is_express=ticket.express,
            priority=ticket.priority,
            expires_at=self.leases.expiry_from(now),
        )
        self.leases.add(untracked(entry))
        worker.promise(entry.lease_id, entry.kv_blocks)
        worker.add_unstarted_tokens(entry.prompt_tokens, is_batch=entry.is_batch)
        lease = self._lease_message(entry, worker)
        return [Expect(worker.key, lease), Place(queue, lease)]

    def start(self, worker: Worker, lease_id: str) -> None:
        """Record that an edge started a lease."""
        if entry := self.leases.start(lease_id, worker.key):
            worker.on_lease_started(entry.prompt_tokens, is_batch=entry.is_batch)
            if entry.is_preemptible:
                worker.allow_preemption(lease_id)

    def preempt(self, worker: Worker) -> list[Effect]:
        """Revoke batch leases, so that a ticket of another class that is placed on the worker has a slot.

        The worker ends their runs and reports the tokens, and the edges enqueue the tickets again.
        """
        return [Revoke(worker.key, lease_id) for lease_id in worker.preempt()]

    def end_unstarted(self, entries: list[LeaseEntry]) -> list[Effect]:
        """End leases that were not started, and revoke them at their workers."""
        for entry in entries:
            self.end(entry)
        return [Revoke(entry.worker, entry.lease_id) for entry in entries if entry.worker in self.fleet]

    def end(self, entry: LeaseEntry) -> None:
        """End a lease and free its capacity."""
        self._close(entry)
        if worker := self.fleet.get(entry.worker):
            worker.release(entry.lease_id)
            worker.forget_number(entry)
            if not entry.is_started:
                worker.add_unstarted_tokens(-entry.prompt_tokens, is_batch=entry.is_batch)

    def on_worker_attached(self, worker: Worker) -> None:
        """Adopt the leases that run on a worker, and keep those that may still start there."""
        for running in worker.profile.running:
            self._adopt(worker, running)
        for entry in self.leases.unstarted_on_worker(worker.worker_id):
            entry.worker = worker.key
            worker.promise(entry.lease_id, entry.kv_blocks)
            worker.add_unstarted_tokens(entry.prompt_tokens, is_batch=entry.is_batch)

    def on_worker_removed(self, worker: Worker) -> None:
        """End the started leases of a worker. The others stay until they expire: the worker may attach again."""
        for lease_id in [*worker.promised, *worker.preempted]:
            entry = self.leases.on_worker(lease_id, worker.key)
            if entry and entry.is_started:
                self._close(entry)

    def _adopt(self, worker: Worker, running: RunningLease) -> None:
        """Take over a lease that runs on a worker that attaches, granted by this or another scheduler."""
        worker.promise(running.lease_id, running.kv_blocks)
        if entry := self.leases.leases.get(running.lease_id):
            entry.worker = worker.key
            self.leases.start(entry.lease_id, worker.key)
            if entry.is_preemptible:
                worker.allow_preemption(entry.lease_id)
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
            self.leases.adopt(untracked(entry))
            self.service_reports.record(entry)

    def _close(self, entry: LeaseEntry) -> None:
        self.leases.end(entry)
        self.service_reports.record(entry, ended=True)

    def _lease_message(self, entry: LeaseEntry, worker: Worker) -> Lease:
        return Lease(
            lease_id=entry.lease_id,
            ticket_id=entry.ticket_id,
            worker_id=entry.worker_id,
            worker_address=worker.address,
            attempt=entry.attempt,
            queue_id=entry.queue,
            ttl=self.leases.ttl_frame,
            express=entry.is_express,
            priority=entry.priority,  # type: ignore[arg-type]  # a value of this enum
            model=worker.model,
        )
