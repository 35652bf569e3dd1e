"""A scheduler under virtual time: the real dispatcher, its effects on their way to shards and workers."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from penstock.mesh.v1.queue_pb2 import DispatchResponse
from penstock.mesh.v1.scheduler_pb2 import CacheNews, Profile, Report, ServedLease
from penstock.scheduler import effects as out
from penstock.scheduler.dispatcher import Dispatcher
from penstock.scheduler.leases import LeaseBook
from penstock.simulator.heap import Events
from penstock.simulator.scenario import Schedulers

TICK = 0.1  # s, as the service has it


class SchedulerPeers(Protocol):
    """Whom a scheduler talks to; each hears of it a link delay later."""

    def to_shards(self, scheduler: str, effect: out.ToQueue | out.Catalog) -> None: ...

    def revoke(self, worker: str, lease_id: str) -> None: ...


class SimScheduler:
    def __init__(self, name: str, kind: Schedulers, events: Events, peers: SchedulerPeers) -> None:
        self.name = name
        self.dispatcher = Dispatcher(
            leases=LeaseBook(ttl=kind.lease_ttl, prefix=name),
            look_ahead=kind.look_ahead,
            reserve_share=kind.reserve_share,
        )
        self._events = events
        self._peers = peers
        events.at(TICK, self._tick)

    def queue_joined(self, shard: str) -> None:
        self._perform(self.dispatcher.queue_joined(shard))

    def hear(self, shard: str, frame: DispatchResponse) -> None:
        core = self.dispatcher
        match frame.WhichOneof("frame"):
            case "offer":
                offer, now = frame.offer, self._events.now
                self._perform(core.offer(shard, offer.ticket, now, on_urgent_credit=offer.uses_urgent_credit))
            case "head":
                self._perform(core.head(shard, frame.head))
            case "recalled":
                self._perform(core.recalled(shard, frame.recalled.ticket_ids))
            case "returned":
                self._perform(core.returned(shard, frame.returned.model, frame.returned.tickets))

    def attached(self, worker: str, profile: Profile, zone: str) -> None:
        self._perform(self.dispatcher.worker_attached(worker, worker, worker, profile, zone=zone))

    def lost(self, worker: str) -> None:
        self._perform(self.dispatcher.worker_lost(worker))

    def report(self, worker: str, report: Report) -> None:
        if worker in self.dispatcher.fleet:
            self.dispatcher.report(worker, report)

    def cache_changed(self, worker: str, news: CacheNews) -> None:
        if worker in self.dispatcher.fleet:
            self.dispatcher.cache_changed(worker, news)

    def started(self, worker: str, lease_id: str) -> None:
        if worker in self.dispatcher.fleet:
            self.dispatcher.started(worker, lease_id)

    def progress(self, worker: str, served: Sequence[ServedLease]) -> None:
        if worker in self.dispatcher.fleet:
            self.dispatcher.progress(worker, served)

    def released(self, worker: str, served: Sequence[ServedLease]) -> None:
        if worker in self.dispatcher.fleet:
            self._perform(self.dispatcher.released(worker, [each.lease_id for each in served], served))

    def _tick(self) -> None:
        self._perform(self.dispatcher.tick(self._events.now))
        self._events.at(self._events.now + TICK, self._tick)

    def _perform(self, effects: Iterable[out.Effect]) -> None:
        for effect in effects:
            match effect:
                case out.Revoke():
                    self._peers.revoke(effect.worker, effect.lease_id)
                case out.Expect():
                    pass  # a simulated worker takes every START; what a revoked lease would start, its edge leaves
                case _:
                    self._peers.to_shards(self.name, effect)
