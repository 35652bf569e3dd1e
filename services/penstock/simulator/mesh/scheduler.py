"""Simulated scheduler: the real dispatcher, whose effects are sent to shards and workers."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from penstock.mesh.v1.queue_pb2 import Head
from penstock.mesh.v1.scheduler_pb2 import LoadReport, PrefixCacheUpdate, Profile, Progress, ServedLease
from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.scheduler import effects as out
from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.leases import LeaseBook
from penstock.simulator.mesh.event_queue import SimEventQueue
from penstock.simulator.scenario import SchedulerSettings

TICK_S = 0.1  # s between two looks whether a tick is due


class SchedulerPeers(Protocol):
    """The peers of a scheduler, which receive each frame after the link delay."""

    def send_to_shards(self, scheduler: str, effect: out.ToQueue | out.CatalogUpdate) -> None: ...

    def revoke(self, worker: str, lease_id: str) -> None: ...


class SimScheduler:
    """One scheduler, with the dispatcher of the scheduler service."""

    def __init__(self, name: str, settings: SchedulerSettings, events: SimEventQueue, peers: SchedulerPeers) -> None:
        self.name = name
        self.dispatcher = Dispatcher(
            leases=LeaseBook(ttl=settings.lease_ttl, prefix=name),
            look_ahead=settings.look_ahead,
            express_slot_share=settings.express_slot_share,
        )
        self._events = events
        self._peers = peers
        events.schedule(TICK_S, self._tick)

    def on_queue_connected(self, shard: str) -> None:
        self._perform(self.dispatcher.on_queue_connected(shard))

    # Called by shards.

    def on_offer(self, shard: str, ticket: Ticket, uses_express_credit: bool) -> None:
        now = self._events.now
        self._perform(self.dispatcher.on_offer(shard, ticket, now, uses_express_credit=uses_express_credit))

    def on_head(self, shard: str, head: Head) -> None:
        self._perform(self.dispatcher.on_head(shard, head, self._events.now))

    def on_offer_withdrawn(self, shard: str, ticket_ids: Iterable[str]) -> None:
        self._perform(self.dispatcher.on_offer_withdrawn(shard, ticket_ids))

    def on_credit_returned(self, shard: str, model: str, tickets: int) -> None:
        self._perform(self.dispatcher.on_credit_returned(shard, model, tickets))

    # Called by workers.

    def on_worker_attached(self, worker: str, profile: Profile, zone: str) -> None:
        self._perform(self.dispatcher.on_worker_attached(worker, worker, worker, profile, zone=zone))

    def on_worker_lost(self, worker: str) -> None:
        self._perform(self.dispatcher.on_worker_lost(worker))

    def on_load_report(self, worker: str, report: LoadReport) -> None:
        if worker in self.dispatcher.fleet:
            self.dispatcher.on_load_report(worker, report)

    def on_prefix_cache_update(self, worker: str, update: PrefixCacheUpdate) -> None:
        if worker in self.dispatcher.fleet:
            self.dispatcher.on_prefix_cache_update(worker, update)

    def on_lease_started(self, worker: str, lease_id: str) -> None:
        if worker in self.dispatcher.fleet:
            self.dispatcher.on_lease_started(worker, lease_id)

    def on_progress(self, worker: str, progress: Progress) -> None:
        if worker in self.dispatcher.fleet:
            self.dispatcher.on_progress(worker, progress)

    def on_leases_released(self, worker: str, served: Sequence[ServedLease], steps: int) -> None:
        if worker in self.dispatcher.fleet:
            leases = [each.lease_id for each in served]
            self._perform(self.dispatcher.on_leases_released(worker, leases, served, steps))

    def _tick(self) -> None:
        if self.dispatcher.next_tick_at <= self._events.now:
            self._perform(self.dispatcher.tick(self._events.now))
            while self.dispatcher.has_due_work:
                self._perform(self.dispatcher.run_slice())
        self._events.schedule(self._events.now + TICK_S, self._tick)

    def _perform(self, effects: Iterable[out.Effect]) -> None:
        for effect in effects:
            match effect:
                case out.Revoke():
                    self._peers.revoke(effect.worker, effect.lease_id)
                case out.Expect():
                    pass  # a simulated worker accepts every run, and no edge starts a run for a revoked lease
                case _:
                    self._peers.send_to_shards(self.name, effect)
