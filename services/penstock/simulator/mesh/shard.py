"""Simulated queue shard: the real ticket book, whose effects are sent to edges and schedulers."""

from collections.abc import Iterable
from typing import Protocol

from penstock.mesh.v1.queue_pb2 import PlacedPrompts, PoolStats, ServiceReport, VirtualTime
from penstock.mesh.v1.ticket_pb2 import CatalogEntry, Lease
from penstock.queue import effects as out
from penstock.queue.admission.admission import QueueLimits
from penstock.queue.autoscaling.shard_demand import ShardDemand
from penstock.queue.frames import (
    output_progress_of,
    pool_stats_of,
    remote_prompts_of,
    served_tickets_of,
    worker_steps_of,
)
from penstock.queue.models.availability import ModelAvailability
from penstock.queue.schedulers import Credit
from penstock.queue.ticket import QueuedTicket
from penstock.queue.tickets.book import TicketBook
from penstock.queue.tickets.recent_leases import RecentLeases
from penstock.simulator.baselines import POLICIES, BaselinePolicy
from penstock.simulator.baselines.policy import BaselineSchedulingPolicy
from penstock.simulator.mesh.event_queue import SimEventQueue
from penstock.simulator.scenario import QueueSettings

TICK_S = 0.05  # s between two ticks, as in the service
LOOP_TURN_S = 0.0005  # s; one iteration of a busy event loop, which sends each head once
EDGE_ID = "edge"
UNLIMITED = QueueLimits(2**60, 2**60)


class ShardPeers(Protocol):
    """The peers of a shard, which receive each frame after the link delay."""

    def send_to_edge(self, effect: out.ToEdge) -> None: ...

    def send_to_scheduler(self, shard: str, effect: out.ToScheduler) -> None: ...


class SimShard:
    """One shard, with the ticket book of the queue service."""

    def __init__(
        self, name: str, queues: QueueSettings, ttft_target: float, events: SimEventQueue, peers: ShardPeers
    ) -> None:
        """`ttft_target` is the time in s to the first token, for policies that admit by it."""
        self.name = name
        self.policy: BaselinePolicy = POLICIES[queues.policy]
        self._events = events
        self._peers = peers
        self._is_head_update_scheduled = False
        self.scheduling_policy = self.policy.new_scheduling_policy(lambda: events.now, queues.policy_options)
        limits = QueueLimits(queues.max_depth, queues.max_tokens) if self.policy.is_bounded else UNLIMITED
        availability = ModelAvailability(timeout=10.0, warm_up=5.0, started_at=0.0)
        recent_leases = RecentLeases(10.0)
        if self.scheduling_policy is None:
            ttft_targets = self.policy.ttft_targets(ttft_target, queues.policy_options, queues.exempt_tickets)
            self.book = TicketBook(
                limits=limits, availability=availability, recent_leases=recent_leases, ttft_targets=ttft_targets
            )
        else:
            policy = self.scheduling_policy  # one model, hence one policy object
            self.book = TicketBook(
                limits=limits, availability=availability, recent_leases=recent_leases, new_policy=lambda: policy
            )
        self.demand = ShardDemand(self.book.model_queues, self.book.accounting, complete_at=0.0)
        self._perform(self.book.on_edge_connected(EDGE_ID))
        events.schedule(TICK_S, self._tick)

    # Called by edges.

    def enqueue(self, ticket: QueuedTicket) -> None:
        self._perform(self.book.enqueue(ticket, self._events.now))

    def withdraw(self, ticket_id: str) -> None:
        self._perform(self.book.withdraw(EDGE_ID, (ticket_id,)))

    # Called by schedulers.

    def on_scheduler_connected(self, scheduler: str) -> None:
        self._perform(self.book.on_scheduler_connected(scheduler, self._events.now))

    def on_catalog(self, scheduler: str, entries: Iterable[CatalogEntry]) -> None:
        self._perform(self.book.on_catalog(scheduler, entries, self._events.now))

    def on_credit(self, scheduler: str, model: str, credit: Credit, return_unused: bool) -> None:
        self._perform(self.book.on_credit(scheduler, model, credit, self._events.now, return_unused=return_unused))

    def on_pool_stats(self, scheduler: str, stats: PoolStats) -> None:
        self._perform(self.book.on_pool_stats(scheduler, stats.model, pool_stats_of(stats, self._events.now)))

    def on_virtual_times(self, scheduler: str, times: Iterable[VirtualTime]) -> None:
        self._perform(self.book.on_virtual_times(scheduler, times))

    def on_placed_prompts(self, scheduler: str, placed: PlacedPrompts) -> None:
        prompts = remote_prompts_of(placed, self.name)
        self._perform(self.book.on_placed_prompts(scheduler, placed.model, prompts, self._events.now))

    def on_service_report(self, scheduler: str, report: ServiceReport) -> None:
        tickets, steps = served_tickets_of(report.tickets), worker_steps_of(report.workers)
        self._perform(self.book.on_service_report(tickets, steps, output_progress_of(report.progress), scheduler))

    def on_place(self, scheduler: str, lease: Lease) -> None:
        self._perform(self.book.on_place(scheduler, lease, self._events.now))

    def on_decline(self, scheduler: str, ticket_id: str, reason: str) -> None:
        self._perform(self.book.on_decline(scheduler, ticket_id, reason, self._events.now))

    # Timers.

    def _tick(self) -> None:
        self._perform(self.book.tick(self._events.now))
        self._events.schedule(self._events.now + TICK_S, self._tick)

    def _send_heads(self) -> None:
        self._is_head_update_scheduled = False
        if self.book.has_due_work(self._events.now):
            self._perform(self.book.run_slice(self._events.now))
        for head in self.book.model_queues.head_updates():
            self._peers.send_to_scheduler(self.name, head)

    # Effects.

    def _perform(self, effects: Iterable[out.Effect]) -> None:
        for effect in effects:
            match effect:
                case out.Leased() | out.Shed() | out.Queued():
                    self._peers.send_to_edge(effect)
                case out.Offer() | out.OfferWithdrawn() | out.CreditReturned():
                    self._peers.send_to_scheduler(self.name, effect)
                case _:
                    pass  # effects for peers that are not simulated
        if self.scheduling_policy is not None:
            self._shed_dropped(self.scheduling_policy)
        if not self._is_head_update_scheduled:
            self._is_head_update_scheduled = True
            self._events.schedule(self._events.now + LOOP_TURN_S, self._send_heads)

    def _shed_dropped(self, scheduling_policy: BaselineSchedulingPolicy) -> None:
        """Shed the tickets that a baseline policy has dropped, because the book does not ask its policy for them."""
        while dropped := scheduling_policy.pop_dropped():
            for ticket in dropped:
                self._peers.send_to_edge(out.Shed(ticket.edge, ticket.ticket_id, self.policy.rejection()))
            for effect in self.book.withdraw(EDGE_ID, [ticket.ticket_id for ticket in dropped]):
                assert isinstance(effect, out.TicketRemoved | out.Withdrawn), "a dropped ticket has not been offered"
