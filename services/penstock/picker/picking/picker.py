"""The picker: admits requests, orders those that wait, and chooses the endpoint of each."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from penstock.chassis.errors import PenstockError
from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.picker.endpoints.fleet import EndpointFleet
from penstock.picker.errors import NoEndpoint
from penstock.picker.picking.estimates import Estimates
from penstock.picker.picking.pick import Pick, PickRequest, Usage
from penstock.queue.admission.admission import TtftTargets
from penstock.queue.errors import DeadlineUnreachable, Evicted, QueueFull
from penstock.queue.models.model_queue import clamp_retry_after
from penstock.queue.policies.cost import cost_of
from penstock.queue.policies.factory import PolicyConfig
from penstock.queue.policies.policy import Fit
from penstock.queue.ticket import QueuedTicket
from penstock.queue.tickets.expirations import TicketExpirations
from penstock.scheduler.fleet.worker import Worker

UNKNOWN_WAIT_RETRY_S = 1.0  # s, if no wait can be predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class PickLimits:
    """Settings of admission and of the choice."""

    max_waiting: int = 1_000  # requests
    fallbacks: int = 1  # endpoints after the chosen one, for retries of the proxy
    targets: TtftTargets = field(default_factory=TtftTargets)
    prefill_rate: float = 8_000.0  # prompt tokens/s, by which the first token follows the slot


class EndpointPicker:
    """Requests in the order of the queue's policy, and endpoints by the scheduler's placement.

    A request that is admitted gets an endpoint at once, or waits for a slot. Methods that free or find capacity return
    the picks that they decided: these have destinations or an error from then on.
    """

    def __init__(self, fleet: EndpointFleet, limits: PickLimits, policy: PolicyConfig) -> None:
        self.fleet = fleet
        self._limits = limits
        self._policy = policy()
        self._waiting: dict[str, Pick] = {}  # by ticket id
        self._expirations = TicketExpirations(lambda ticket: ticket.ticket_id in self._waiting)
        self._count = 0  # requests since the start
        self.estimates = Estimates()

    def __repr__(self) -> str:
        return f"<EndpointPicker {len(self._waiting)} waiting, {self.held} slots held>"

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def held(self) -> int:
        """Slots that requests hold, at listed endpoints."""
        return sum(each.held for each in self.fleet)

    def submit(self, request: PickRequest, now: float) -> tuple[Pick, list[Pick]]:
        """Admit a request. Return its pick, and the waiting picks that were decided for it.

        Raises NoEndpoint, DeadlineUnreachable or QueueFull.
        """
        if not self.fleet.usable(request.subset):
            raise NoEndpoint(in_subset=request.subset is not None)
        pick = Pick(request, self._ticket(request, now))
        if not request.needs_slot:
            self._choose_without_slot(pick)
            return pick, []
        pick.ticket.is_express = self._policy.is_express(pick.ticket)
        self._admit(pick.ticket, now)
        evicted = self._make_room(pick.ticket, now)
        self._waiting[pick.ticket.ticket_id] = pick
        self._expirations.schedule_expiration(pick.ticket)
        self._policy.push(pick.ticket)
        return pick, evicted + self._dispatch(now)

    def withdraw(self, pick: Pick, now: float) -> list[Pick]:
        """End a request: it waits no more, and its slot is free. Idempotent."""
        if self._waiting.pop(pick.ticket.ticket_id, None):
            self._policy.remove(pick.ticket)
            self._expirations.on_removed(pick.ticket)
            return []
        if not pick.worker:
            return []
        pick.worker.release(pick.ticket.ticket_id)
        pick.worker = None
        return self._dispatch(now)

    def settle(self, pick: Pick, usage: Usage | None, now: float) -> list[Pick]:
        """End a request whose response is complete. `usage` corrects the charge of its tenant; None: not reported."""
        if pick.worker:
            self.estimates.record_hold(now - pick.placed_at)
        if usage:
            self.estimates.record_usage(pick.request, usage)
            computed = max(0, usage.prompt_tokens - usage.cached_tokens)
            self._policy.charge(pick.ticket, cost_of(pick.ticket, computed, usage.output_tokens))
        return self.withdraw(pick, now)

    def on_served(self, pick: Pick, address: str, now: float) -> list[Pick]:
        """The proxy received a response of the endpoint `address`, which has the slot from now on."""
        self.fleet.on_answer(address, now)
        endpoint = self.fleet.endpoints.get(address)
        if not pick.worker or not endpoint or endpoint.worker is pick.worker:
            return []
        pick.worker.release(pick.ticket.ticket_id)
        self._hold(pick, endpoint.worker)
        return self._dispatch(now)

    def on_fleet_changed(self, now: float) -> list[Pick]:
        """Place requests on capacity that was found, and reject those whose endpoints are all lost."""
        lost = [each for each in self._waiting.values() if not self.fleet.usable(each.request.subset)]
        for pick in lost:
            self._reject(pick, NoEndpoint(in_subset=pick.request.subset is not None), now)
        return lost + self._dispatch(now)

    def expire(self, now: float) -> list[Pick]:
        """Reject the requests that can no longer have their first token in time."""
        expired = []
        for ticket in self._expirations.overdue(now):
            pick = self._waiting[ticket.ticket_id]
            wait = self.predicted_wait(ticket) or UNKNOWN_WAIT_RETRY_S
            self._reject(pick, DeadlineUnreachable.while_waiting(now - ticket.arrived, clamp_retry_after(wait)), now)
            expired.append(pick)
        return expired

    def predicted_wait(self, ticket: QueuedTicket) -> float | None:
        """Return the s until a request that arrives now has a slot; None if it is not known."""
        totals = self.fleet.pool.totals
        position = self._policy.position_of(ticket)
        return self.estimates.wait(position.tickets + position.later_tickets, totals.available_leases, totals.slots)

    def _ticket(self, request: PickRequest, now: float) -> QueuedTicket:
        self._count += 1
        return QueuedTicket(
            ticket_id=str(self._count),
            edge="",
            tenant_id=request.tenant,
            model="",
            priority=request.priority,
            weight=request.weight,
            prompt_tokens=request.prompt_tokens,
            max_output_tokens=request.max_output_tokens,
            deadline=now + request.time_limit if request.time_limit else 0.0,
            enqueued=now,
            attempt=1,
            arrived=now,
            arrival_number=self._count,
            predicted_output=self.estimates.output_tokens(request),
        )

    def _admit(self, ticket: QueuedTicket, now: float) -> None:
        """Set the lease deadline. Raises the error of a request that would be late."""
        limit = self._limits.targets.ttft_limit(ticket, now)
        if limit is None:
            return
        after_slot = ticket.prompt_tokens / self._limits.prefill_rate
        ticket.ttft_limit, ticket.lease_deadline = limit, now + max(0.0, limit - after_slot)
        wait = self.predicted_wait(ticket)
        if wait and wait + after_slot > limit:
            raise DeadlineUnreachable(wait + after_slot, limit, clamp_retry_after(wait + after_slot - limit))

    def _make_room(self, ticket: QueuedTicket, now: float) -> list[Pick]:
        """Return the picks that are evicted for a ticket. Raises QueueFull if it may evict none."""
        if len(self._waiting) < self._limits.max_waiting:
            return []
        retry_after = clamp_retry_after(self.predicted_wait(ticket) or UNKNOWN_WAIT_RETRY_S)
        victim = self._policy.next_victim(ticket.priority)
        if victim is None:
            raise QueueFull(len(self._waiting), retry_after)
        pick = self._waiting[victim[0].ticket_id]
        self._reject(pick, Evicted(retry_after), now)
        return [pick]

    def _reject(self, pick: Pick, error: PenstockError, now: float) -> None:
        pick.error, pick.waited = error, now - pick.ticket.arrived
        self.withdraw(pick, now)

    def _dispatch(self, now: float) -> list[Pick]:
        """Give slots to waiting requests in their order."""
        placed: list[Pick] = []
        while self._waiting and self.fleet.pool.totals.available_leases:
            ticket = self._policy.pop_fitting(self._fit)
            if ticket is None:
                break
            pick = self._waiting.pop(ticket.ticket_id)
            self._expirations.on_removed(ticket)
            self._place(pick, now)
            placed.append(pick)
        return placed

    def _fit(self, ticket: QueuedTicket) -> Fit:
        pool, subset = self.fleet.pool, self._waiting[ticket.ticket_id].request.subset
        if subset is None:
            tokens = min(ticket.work, pool.max_supported_tokens)
            return Fit.NOW if tokens <= pool.max_ticket_tokens else Fit.LATER
        workers = self.fleet.workers_of(subset)
        has_room = any(min(ticket.work, each.max_supported_tokens) <= each.max_ticket_tokens > 0 for each in workers)
        return Fit.NOW if has_room else Fit.NEVER  # others need not wait for these endpoints

    def _place(self, pick: Pick, now: float) -> None:
        """Choose the endpoint of a request that fits, and hold a slot of it."""
        pool, subset = self.fleet.pool, pick.request.subset
        limit = pool.max_ticket_tokens
        if subset is not None:
            limit = max(each.max_ticket_tokens for each in self.fleet.workers_of(subset))
        placed = pool.place(self._frame(pick.ticket, pick.request, limit), subset)
        assert placed, "a ticket that fits has a worker"
        pick.placed_at, pick.waited, pick.new_tokens = now, now - pick.ticket.arrived, placed.new_tokens
        self._hold(pick, placed.worker)
        placed.worker.add_unstarted_tokens(placed.new_tokens)
        placed.worker.on_lease_started(placed.new_tokens)
        pick.destinations = (placed.worker.address, *self._fallbacks(placed.worker, pick.request))

    @staticmethod
    def _hold(pick: Pick, worker: Worker) -> None:
        """Promise the blocks of a request, as many as the endpoint has: its estimate may exceed them."""
        blocks = min(-(-pick.ticket.work // worker.block_size), worker.max_supported_tokens // worker.block_size)
        worker.promise(pick.ticket.ticket_id, blocks)
        pick.worker = worker

    @staticmethod
    def _frame(ticket: QueuedTicket, request: PickRequest, max_tokens: int) -> Ticket:
        """Return the ticket as the scheduler's placement reads it. No endpoint can take more than `max_tokens`."""
        prompt = min(ticket.prompt_tokens, max_tokens)
        return Ticket(
            priority=ticket.priority,  # type: ignore[arg-type]  # the int is a value of this enum
            prompt_tokens=prompt,
            max_output_tokens=min(ticket.expected_output, max_tokens - prompt),
            prefix_hashes=request.prefix_hashes,
        )

    def _choose_without_slot(self, pick: Pick) -> None:
        addresses = (each.address for each in self.fleet.workers_of(pick.request.subset))
        pick.destinations = tuple(islice(addresses, 1 + self._limits.fallbacks))

    def _fallbacks(self, chosen: Worker, request: PickRequest) -> Iterable[str]:
        others = (each.address for each in self.fleet.workers_of(request.subset) if each is not chosen)
        return islice(others, self._limits.fallbacks)
