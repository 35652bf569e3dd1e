"""The simulated mesh: shards, schedulers, workers and edges, and the links between them.

A link has a delay of `link_delay` each way and keeps the order of frames. Every method stands for one frame.
"""

from collections.abc import Callable, Sequence

from penstock.edge.upstreams.hashing import shard_for
from penstock.mesh.v1.batch_pb2 import LineEnded
from penstock.mesh.v1.queue_pb2 import ServiceReport
from penstock.mesh.v1.scheduler_pb2 import LoadReport, PrefixCacheUpdate, Progress, ServedLease
from penstock.queue import effects as queue_out
from penstock.queue.errors import AdmissionRejected
from penstock.queue.frames import head_message
from penstock.queue.schedulers import Credit
from penstock.queue.ticket import QueuedTicket, to_frame
from penstock.scheduler import effects as scheduler_out
from penstock.simulator.autoscaling.keda import KedaController
from penstock.simulator.baselines import POLICIES
from penstock.simulator.baselines.base import StepObserver
from penstock.simulator.mesh.autoscaler import SimAutoscaler
from penstock.simulator.mesh.batch_replica import SimBatchReplica, SimLine
from penstock.simulator.mesh.edge.admission_filter import SimAdmissionFilter
from penstock.simulator.mesh.edge.edge import SimEdge
from penstock.simulator.mesh.engine import SimRun
from penstock.simulator.mesh.event_queue import SimEventQueue
from penstock.simulator.mesh.pods import SimPods
from penstock.simulator.mesh.roll import SimRoll
from penstock.simulator.mesh.scheduler import SimScheduler
from penstock.simulator.mesh.shard import SimShard
from penstock.simulator.mesh.worker import MODEL, SimWorker
from penstock.simulator.report.ledger import SimulationLedger
from penstock.simulator.report.service_accounting import ServiceOverTime
from penstock.simulator.scenario import Scenario, WorkerKind, WorkerLoss


class SimMesh:
    """All components of one mesh; delivers their effects as events after the link delay."""

    def __init__(self, scenario: Scenario, events: SimEventQueue) -> None:
        self.ledger = SimulationLedger(
            ServiceOverTime(scenario.sample_every), scenario.link_delay, scenario.targets.ttft
        )
        self.worker_lives: list[SimWorker] = []  # all workers so far; a lost worker returns as a new one
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
        admission_filter = SimAdmissionFilter(queues.exempt_tickets) if policy.factory is None else None
        self.edge = SimEdge(
            scenario,
            events,
            self,
            self.ledger,
            admission_filter=admission_filter,
            cancels_abandoned=policy.cancels_abandoned,
        )
        self.batches = SimBatchReplica(scenario, events, self)
        self._step_observers: list[StepObserver] = []
        for shard in self.shards.values():
            if isinstance(shard.scheduling_policy, StepObserver):
                self._step_observers.append(shard.scheduling_policy)
        zones = {each.name: each.zone for each in scenario.tenants}
        self._zones = zones if any(zones.values()) else {}
        self._shard_by_tenant: dict[str, SimShard] = {}
        self._worker_kinds = [kind for kind in scenario.workers for _ in range(kind.count)]
        self._workers: dict[str, SimWorker] = {}
        self._attached: set[str] = set()  # workers of the autoscaler that take leases
        self._scheduler_of: dict[str, SimScheduler] = {}
        self.autoscaler: SimAutoscaler | None = None
        self.roll: SimRoll | None = None
        if scale := scenario.autoscale:
            pods = SimPods(scale.load_time, scale.drain_grace, events, self)
            shards = list(self.shards.values())
            self.autoscaler = SimAutoscaler(scale, events, pods, shards, KedaController(scale.keda))
        elif roll := scenario.roll:
            pods = SimPods(roll.load_time, roll.drain_grace, events, self)
            self.roll = SimRoll(roll, events, pods, scenario.worker_count)
        self._connect()

    def _connect(self) -> None:
        for scheduler in self.schedulers.values():
            for shard in self.shards.values():
                shard.on_scheduler_connected(scheduler.name)
                scheduler.on_queue_connected(shard.name)
        if pods := self.autoscaler or self.roll:
            pods.begin()
        else:
            for number, kind in enumerate(self._worker_kinds):
                self._attach_worker(number, kind, life=1)
        for loss in self._scenario.losses:
            self._events.schedule(loss.lost_at, self._lose_worker, loss)

    # Workers.

    def worker(self, name: str) -> SimWorker:
        return self._workers[name]

    @property
    def is_served(self) -> bool:
        """Whether a worker is attached, so that edges have a tokenizer. A mesh of a fixed size always has one."""
        return self.autoscaler is None or bool(self._attached)

    def on_held_requests(self, requests: int) -> None:
        if self.autoscaler:
            self.autoscaler.on_held_requests(requests)

    def attach_worker(self) -> SimWorker:
        worker = self._attach_worker(len(self.worker_lives), self._scenario.workers[0], life=1)
        self._attached.add(worker.name)
        self._send(self.edge.on_model_served)
        return worker

    def detach_worker(self, worker: SimWorker) -> None:
        """Detach a worker that drains: it takes no new leases, and its runs continue."""
        self._attached.discard(worker.name)
        self._send(self._scheduler_of[worker.name].on_worker_lost, worker.name)

    def _attach_worker(self, number: int, kind: WorkerKind, life: int) -> SimWorker:
        name = f"worker-{number}" if life == 1 else f"worker-{number}-life-{life}"
        worker = SimWorker(name, kind, self._scenario.engine_kind, self._events, self)
        self.worker_lives.append(worker)
        self._workers[name] = worker
        schedulers = list(self.schedulers.values())
        self._scheduler_of[name] = schedulers[number % len(schedulers)]
        self._send(self._scheduler_of[name].on_worker_attached, name, worker.profile, kind.zone)
        return worker

    def _lose_worker(self, loss: WorkerLoss) -> None:
        lives = [each for each in self.worker_lives if each.name.split("-")[1] == str(loss.worker)]
        worker = lives[-1]
        lost = worker.die()
        noticed = self._events.now + self._scenario.loss_detection_delay
        self._events.schedule(noticed, self._scheduler_of[worker.name].on_worker_lost, worker.name)
        for run in lost:
            self._events.schedule(noticed, self.edge.on_run_lost, worker, run)
        if loss.returns_after:
            returns_at = self._events.now + loss.returns_after
            self._events.schedule(returns_at, self._attach_worker, loss.worker, worker.kind, len(lives) + 1)

    # Frames of the batch replica.

    def start_line(self, line: SimLine) -> None:
        self._send(self.edge.on_line, line)

    def stop_line(self, line_id: str) -> None:
        self._send(self.edge.on_line_stopped, line_id)

    # Frames of edges.

    def send_line_running(self, number: int) -> None:
        self._send(self.batches.on_line_running, number)

    def send_line_ended(self, ended: LineEnded) -> None:
        self._send(self.batches.on_line_ended, ended)

    def enqueue(self, ticket: QueuedTicket) -> None:
        self._send(self._shard_of(ticket.tenant_id).enqueue, ticket)

    def withdraw(self, ticket: QueuedTicket) -> None:
        self._send(self._shard_of(ticket.tenant_id).withdraw, ticket.ticket_id)

    def start(self, worker: str, lease_id: str, run: SimRun) -> None:
        self._send(self._on_start, self._workers[worker], lease_id, run)

    def cancel(self, worker: str, run: SimRun) -> None:
        self._send(self._workers[worker].cancel, run)

    def _on_start(self, worker: SimWorker, lease_id: str, run: SimRun) -> None:
        if worker.is_alive:
            worker.start(lease_id, run)
        else:
            self._events.schedule(
                self._events.now + self._scenario.loss_detection_delay, self.edge.on_run_lost, worker, run
            )

    def _shard_of(self, tenant: str) -> SimShard:
        if tenant not in self._shard_by_tenant:
            name = shard_for(self.shards, MODEL, tenant)
            assert name, "a mesh has at least one shard"
            self._shard_by_tenant[tenant] = self.shards[name]
        return self._shard_by_tenant[tenant]

    # Frames of shards.

    def send_to_edge(self, effect: queue_out.ToEdge) -> None:
        match effect:
            case queue_out.Queued():
                # The prediction is only recorded, and no decision depends on it: it needs no event.
                self.edge.on_queued(effect.ticket_id, effect.predicted_wait, effect.predicted_ttft)
                if self.edge.admission_filter:
                    self._send(self.edge.on_rejection_windows, effect.ticket_id, tuple(effect.rejection_windows()))
            case queue_out.Leased():
                self._send(self.edge.on_leased, effect.lease, effect.waited)
            case queue_out.Shed():
                windows = effect.error.rejection_windows() if isinstance(effect.error, AdmissionRejected) else ()
                self._send(self.edge.on_shed, effect.ticket_id, effect.error, tuple(windows))
            case _:
                pass

    def send_to_scheduler(self, shard: str, effect: queue_out.ToScheduler) -> None:
        """Send an effect of a shard to its scheduler."""
        scheduler = self.schedulers[effect.scheduler]
        match effect:
            case queue_out.Offer():
                ticket = to_frame(effect.ticket, self._events.now)
                if self._zones:
                    ticket.zone = self._zones[ticket.tenant_id]
                self._send(scheduler.on_offer, shard, ticket, effect.uses_express_credit)
            case queue_out.Head():
                self._send(scheduler.on_head, shard, head_message(effect, self._events.now))
            case queue_out.OfferWithdrawn():
                self._send(scheduler.on_offer_withdrawn, shard, effect.ticket_ids)
            case queue_out.CreditReturned():
                self._send(scheduler.on_credit_returned, shard, effect.model, effect.tickets)

    # Frames of schedulers.

    def send_to_shards(self, scheduler: str, effect: scheduler_out.ToQueue | scheduler_out.CatalogUpdate) -> None:
        match effect:
            case scheduler_out.GrantCredit():
                total, express = effect.total_tokens or None, effect.express_tickets
                credit = Credit(effect.tickets, effect.max_ticket_tokens, effect.tokens_per_second, total, express)
                self._send(self.shards[effect.queue].on_credit, scheduler, effect.model, credit, effect.return_unused)
            case scheduler_out.Place():
                self._send(self.shards[effect.queue].on_place, scheduler, effect.lease)
            case scheduler_out.Decline():
                self._send(self.shards[effect.queue].on_decline, scheduler, effect.ticket_id, effect.reason)
            case scheduler_out.SendPoolStats():
                self._send(self.shards[effect.queue].on_pool_stats, scheduler, effect.stats)
            case scheduler_out.SendVirtualTimes():
                self._send(self.shards[effect.queue].on_virtual_times, scheduler, effect.times)
            case scheduler_out.SendPlacedPrompts():
                self._send(self.shards[effect.queue].on_placed_prompts, scheduler, effect.prompts)
            case scheduler_out.SendServiceReport():
                report = ServiceReport(tickets=effect.tickets, workers=effect.workers, progress=effect.progress)
                self._send(self.shards[effect.queue].on_service_report, scheduler, report)
            case scheduler_out.CatalogUpdate():
                for shard in self.shards.values():
                    self._send(shard.on_catalog, scheduler, effect.entries)

    def revoke(self, worker: str, lease_id: str) -> None:
        self._send(self._workers[worker].revoke, lease_id)

    # Frames of workers.

    def send_started(self, worker: str, lease_id: str) -> None:
        self._send(self._scheduler_of[worker].on_lease_started, worker, lease_id)

    def send_progress(self, worker: str, progress: Progress) -> None:
        self._send(self._scheduler_of[worker].on_progress, worker, progress)

    def send_released(self, worker: str, served: Sequence[ServedLease], steps: int) -> None:
        self._send(self._scheduler_of[worker].on_leases_released, worker, served, steps)

    def send_report(self, worker: str, report: LoadReport) -> None:
        self._send(self._scheduler_of[worker].on_load_report, worker, report)

    def send_cache_update(self, worker: str, update: PrefixCacheUpdate) -> None:
        self._send(self._scheduler_of[worker].on_prefix_cache_update, worker, update)

    def send_run_ended(self, worker: SimWorker, run: SimRun) -> None:
        self._send(self.edge.on_run_ended, worker, run)

    def send_run_revoked(self, worker: SimWorker, run: SimRun) -> None:
        self._send(self.edge.on_run_revoked, worker, run)

    @property
    def observes_steps(self) -> bool:
        return bool(self._step_observers)

    def on_step(self, worker: SimWorker) -> None:
        """Report the step that has just ended to the policies that charge every token."""
        for observer in self._step_observers:
            observer.on_step(worker.runs.values(), len(worker.step_ends) - 1)

    def _send(self, callback: Callable[..., None], *args: object) -> None:
        self._events.schedule_after(self._delay, callback, args)


def _names(kind: str, count: int) -> list[str]:
    return [f"{kind}-{number}" for number in range(count)]
