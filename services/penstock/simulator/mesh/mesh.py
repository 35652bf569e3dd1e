"""The mesh as one object: shards, schedulers, workers and edges, and the links between them.

A link takes `link_delay` each way and keeps the order. Nothing else happens here: every method is a frame under way.
"""

from collections.abc import Callable, Sequence

from penstock.edge.links.shards import shard_for
from penstock.mesh.v1.scheduler_pb2 import LoadReport, PrefixCacheUpdate, ServedLease
from penstock.queue import effects as queue_out
from penstock.queue.errors import AdmissionRejected
from penstock.queue.frames import head_message
from penstock.queue.seats import Credit
from penstock.queue.waiting import QueuedTicket, to_frame
from penstock.scheduler import effects as scheduler_out
from penstock.simulator.baselines import POLICIES
from penstock.simulator.baselines.watching import WatchesSteps
from penstock.simulator.mesh.admission_filter import SimDoor
from penstock.simulator.mesh.edge import SimEdge
from penstock.simulator.mesh.engine import Run
from penstock.simulator.mesh.event_queue import Events
from penstock.simulator.mesh.scheduler import SimScheduler
from penstock.simulator.mesh.shard import SimShard
from penstock.simulator.mesh.worker import MODEL, SimWorker
from penstock.simulator.report.ledger import Ledger
from penstock.simulator.report.service_accounting import Served
from penstock.simulator.scenario import Loss, Scenario, WorkerKind


class SimMesh:
    def __init__(self, scenario: Scenario, events: Events) -> None:
        self.ledger = Ledger(Served(scenario.sample_every), scenario.link_delay, scenario.targets.ttft)
        self.lives: list[SimWorker] = []  # every worker that ever was; a lost one comes back as another
        self._scenario = scenario
        self._events = events
        self._delay = scenario.link_delay
        queues, ttft = scenario.queues, scenario.targets.ttft
        self.shards = {name: SimShard(name, queues, ttft, events, self) for name in _names("queue", queues.shards)}
        self.schedulers = {
            name: SimScheduler(name, scenario.schedulers, events, self)
            for name in _names("scheduler", scenario.schedulers.count)
        }
        policy = POLICIES[queues.policy]
        door = SimDoor(queues.let_in) if policy.make is None else None
        self.edge = SimEdge(scenario, events, self, self.ledger, door=door, minds_clients=policy.minds_clients)
        self._watching: list[WatchesSteps] = []
        for shard in self.shards.values():
            if isinstance(shard.order, WatchesSteps):
                self._watching.append(shard.order)
        zones = {each.name: each.zone for each in scenario.tenants}
        self._zones = zones if any(zones.values()) else {}
        self._homes: dict[str, SimShard] = {}
        self._kinds = [kind for kind in scenario.workers for _ in range(kind.count)]
        self._workers: dict[str, SimWorker] = {}
        self._scheduler_of: dict[str, SimScheduler] = {}
        self._join()

    def _join(self) -> None:
        for scheduler in self.schedulers.values():
            for shard in self.shards.values():
                shard.scheduler_joined(scheduler.name)
                scheduler.queue_joined(shard.name)
        for number, kind in enumerate(self._kinds):
            self._attach(number, kind, life=1)
        for loss in self._scenario.losses:
            self._events.at(loss.at, self._lose, loss)

    # Workers.

    def worker(self, name: str) -> SimWorker:
        return self._workers[name]

    def _attach(self, number: int, kind: WorkerKind, life: int) -> None:
        name = f"worker-{number}" if life == 1 else f"worker-{number}-life-{life}"
        worker = SimWorker(name, kind, self._scenario.stepping, self._events, self)
        self.lives.append(worker)
        self._workers[name] = worker
        schedulers = list(self.schedulers.values())
        self._scheduler_of[name] = schedulers[number % len(schedulers)]
        self._send(self._scheduler_of[name].attached, name, worker.profile, kind.zone)

    def _lose(self, loss: Loss) -> None:
        lives = [each for each in self.lives if each.name.split("-")[1] == str(loss.worker)]
        worker = lives[-1]
        lost = worker.die()
        noticed = self._events.now + self._scenario.detect_loss
        self._events.at(noticed, self._scheduler_of[worker.name].lost, worker.name)
        for run in lost:
            self._events.at(noticed, self.edge.run_lost, worker, run)
        if loss.back_after:
            back = self._events.now + loss.back_after
            self._events.at(back, self._attach, loss.worker, worker.kind, len(lives) + 1)

    # From edges.

    def enqueue(self, ticket: QueuedTicket) -> None:
        self._send(self._home(ticket.tenant_id).enqueue, ticket)

    def withdraw(self, ticket: QueuedTicket) -> None:
        self._send(self._home(ticket.tenant_id).withdraw, ticket.ticket_id)

    def start(self, worker: str, lease_id: str, run: Run) -> None:
        self._send(self._arrive_at_worker, self._workers[worker], lease_id, run)

    def cancel(self, worker: str, run: Run) -> None:
        self._send(self._workers[worker].cancel, run)

    def _arrive_at_worker(self, worker: SimWorker, lease_id: str, run: Run) -> None:
        if worker.is_alive:
            worker.start(lease_id, run)
        else:
            self._events.at(self._events.now + self._scenario.detect_loss, self.edge.run_lost, worker, run)

    def _home(self, tenant: str) -> SimShard:
        if tenant not in self._homes:
            name = shard_for(self.shards, MODEL, tenant)
            assert name, "a mesh has a shard at least"
            self._homes[tenant] = self.shards[name]
        return self._homes[tenant]

    # From shards.

    def to_edge(self, effect: queue_out.ToEdge) -> None:
        match effect:
            case queue_out.Queued():
                # Nobody but its door acts on it, so the rest need not be under way.
                self.edge.queued(effect.ticket_id, effect.predicted_wait, effect.predicted_ttft)
                if self.edge.door:
                    self._send(self.edge.closed_behind, effect.ticket_id, tuple(effect.rejection_windows()))
            case queue_out.Leased():
                self._send(self.edge.leased, effect.lease, effect.waited)
            case queue_out.Shed():
                closed = effect.error.rejection_windows() if isinstance(effect.error, AdmissionRejected) else ()
                self._send(self.edge.shed, effect.ticket_id, effect.error, tuple(closed))
            case _:
                pass

    def to_scheduler(self, shard: str, effect: queue_out.ToScheduler) -> None:
        """Send messages without their envelopes."""
        scheduler = self.schedulers[effect.scheduler]
        match effect:
            case queue_out.Offer():
                ticket = to_frame(effect.ticket)
                if self._zones:
                    ticket.zone = self._zones[ticket.tenant_id]
                self._send(scheduler.offer, shard, ticket, effect.uses_express_credit)
            case queue_out.Head():
                self._send(scheduler.head, shard, head_message(effect))
            case queue_out.OfferWithdrawn():
                self._send(scheduler.recalled, shard, effect.ticket_ids)
            case queue_out.CreditReturned():
                self._send(scheduler.returned, shard, effect.model, effect.tickets)

    # From schedulers.

    def to_shards(self, scheduler: str, effect: scheduler_out.ToQueue | scheduler_out.CatalogUpdate) -> None:
        match effect:
            case scheduler_out.GrantCredit():
                room, urgent = effect.total_tokens or None, effect.express_tickets
                given = Credit(effect.tickets, effect.max_ticket_tokens, effect.tokens_per_second, room, urgent)
                self._send(self.shards[effect.queue].credit, scheduler, effect.model, given, effect.return_unused)
            case scheduler_out.Place():
                self._send(self.shards[effect.queue].place, scheduler, effect.lease)
            case scheduler_out.Decline():
                self._send(self.shards[effect.queue].decline, scheduler, effect.ticket_id, effect.reason)
            case scheduler_out.SendPoolStats():
                self._send(self.shards[effect.queue].pace, scheduler, effect.stats)
            case scheduler_out.SendVirtualTimes():
                self._send(self.shards[effect.queue].virtual_times, effect.times)
            case scheduler_out.SendServiceReport():
                self._send(self.shards[effect.queue].served, effect.tickets, effect.workers)
            case scheduler_out.CatalogUpdate():
                for shard in self.shards.values():
                    self._send(shard.catalog, scheduler, effect.entries)

    def revoke(self, worker: str, lease_id: str) -> None:
        """A lease that no edge starts: the worker has nothing of it yet."""

    # From workers.

    def started(self, worker: str, lease_id: str) -> None:
        self._send(self._scheduler_of[worker].started, worker, lease_id)

    def progress(self, worker: str, served: Sequence[ServedLease]) -> None:
        self._send(self._scheduler_of[worker].progress, worker, served)

    def released(self, worker: str, served: Sequence[ServedLease]) -> None:
        self._send(self._scheduler_of[worker].released, worker, served)

    def report(self, worker: str, report: LoadReport) -> None:
        self._send(self._scheduler_of[worker].report, worker, report)

    def cache_changed(self, worker: str, news: PrefixCacheUpdate) -> None:
        self._send(self._scheduler_of[worker].cache_changed, worker, news)

    def run_over(self, worker: SimWorker, run: Run) -> None:
        self._send(self.edge.run_over, worker, run)

    @property
    def watches_steps(self) -> bool:
        return bool(self._watching)

    def stepped(self, worker: SimWorker) -> None:
        """Tell an order that charges every token who got one in the step that is just over."""
        for order in self._watching:
            order.stepped(worker.runs.values(), len(worker.ends) - 1)

    def _send(self, call: Callable[..., None], *args: object) -> None:
        self._events.after(self._delay, call, args)


def _names(kind: str, count: int) -> list[str]:
    return [f"{kind}-{number}" for number in range(count)]
