"""Weighted VTC: fair share between the tenants of one class, by a virtual token counter per tenant.

The tenant with the least weighted service is served first. Source: Sheng et al. 2024, Fairness in Serving Large
Language Models (OSDI), algorithms 2 and 3: a returning tenant is lifted to the least counter of the waiting tenants, a
part of the output is charged in advance, and the charge is corrected at the end.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.queue.policies.burst_credit import VirtualClock
from penstock.queue.policies.cost import predicted_cost, running_cost
from penstock.queue.policies.lazy_heap import LazyHeap
from penstock.queue.policies.policy import FitFn, QueuePosition
from penstock.queue.policies.ranked_queue import MAX_TICKETS_SCANNED, RankedQueue, TakeResult
from penstock.queue.policies.ticket_order import Rank, fifo
from penstock.queue.ticket import QueuedTicket

MAX_TICKETS_SCANNED_PER_TENANT = (
    8  # tickets scanned per tenant for one that fits, so that other tenants are scanned too
)
MAX_LEAD_COST_SHARE = 0.2  # share of the cost of a ticket that does not fit, by which others may lead its tenant
TENANT_SAMPLE_SIZE = 32  # tenants sampled to estimate the work before a ticket
MIN_SWEEP_ACCOUNTS = 1_024  # accounts below which no sweep is made
NOTHING_AHEAD = QueuePosition(0, 0)

TurnEntry = tuple[float, int, int, "TenantAccount"]  # counter, arrival number of the first ticket, turn number, account


@dataclass(slots=True, eq=False)
class TenantAccount:
    """The account of one tenant. It has a queue while tickets of the tenant wait."""

    counter: float  # virtual tokens: weighted tokens served, divided by the weight
    served_tokens: float = 0.0  # the same on the virtual clock of burst credit
    turn_number: int = 0  # older heap entries of the account are stale
    queue: RankedQueue | None = None
    queued_cost: float = 0.0  # virtual tokens of the waiting tickets
    tickets_per_virtual_token: float = 0.0  # waiting tickets by their virtual tokens

    @property
    def is_waiting(self) -> bool:
        return self.queue is not None


class WeightedVtc:
    """Tickets of one class; the tenant with the least counter has its turn.

    `burst_tokens`: weighted tokens by which the counter of a returning tenant may be below those of the others. A
    tenant within its share then does not wait behind tenants that exceed theirs. It adds to the fairness bound.
    """

    def __init__(self, rank: Rank = fifo, burst_tokens: float = 0.0) -> None:
        self._rank = rank
        self._burst_tokens = burst_tokens
        self._accounts: dict[str, TenantAccount] = {}
        self._waiting: LazyHeap[TurnEntry] = LazyHeap(_is_current)
        self.tickets = 0
        self.work = 0
        self.tickets_per_virtual_token = 0.0  # sum over the waiting tenants
        self.waiting_tenants = 0
        self._turn_count = 0
        self._last_served = TenantAccount(0.0)  # account whose last ticket was taken most recently
        self._virtual_time = 0.0
        self._remote_virtual_time: float | None = None  # virtual time of other shards; None: not received
        self.lifted_tokens = 0.0  # added to counters when shards are compared
        self._sweep_at = MIN_SWEEP_ACCOUNTS
        self._clock = VirtualClock()

    def __iter__(self) -> Iterator[QueuedTicket]:
        return (ticket for account in self._accounts.values() if account.queue for ticket in account.queue)

    def __len__(self) -> int:
        """Return the number of tenants with an account."""
        return len(self._accounts)

    @property
    def virtual_tokens(self) -> float:
        turn = self._waiting.first()
        assert turn, "a turn belongs to a waiting tenant"
        return turn[0] + self.lifted_tokens

    @property
    def virtual_time(self) -> float:
        """Counter of a tenant that arrives for the first time: the least counter of the waiting tenants.

        It never decreases. Otherwise a tenant that catches up would lower the counters of tenants that arrive later.
        """
        turn = self._waiting.first()
        self._virtual_time = max(self._virtual_time, turn[0] if turn else self._last_served.counter)
        return self._virtual_time

    def counter(self, tenant_id: str) -> float:
        account = self._accounts.get(tenant_id)
        return account.counter if account else self.virtual_time

    def advance_virtual_time(self, virtual_tokens: float) -> None:
        """See `SchedulingPolicy`. Waiting tenants keep their lag behind other shards, except at the first update."""
        is_first = self._remote_virtual_time is None
        self._remote_virtual_time = max(self._remote_virtual_time or 0.0, virtual_tokens)
        if is_first:
            self._lift_to_remote()

    def _lift_to_remote(self) -> None:
        """Lift tenants that arrive now to the virtual time of other shards, with neither credit nor debt."""
        if self._remote_virtual_time is not None:
            self.lifted_tokens = max(self.lifted_tokens, self._remote_virtual_time - self.virtual_time)

    def push(self, ticket: QueuedTicket) -> None:
        if not self.tickets and not ticket.charged_cost:
            self._lift_to_remote()
        account = self._account(ticket.tenant_id)
        if account.queue is None:
            if not ticket.charged_cost:  # a charged ticket is returned; its tenant had not left
                self._lift_to_virtual_time(account)
            account.queue = RankedQueue(self._rank)
            self.waiting_tenants += 1
            account.queue.push(ticket)
            self._enqueue_turn(account)
            if self.waiting_tenants == 1:
                self._clock.start(self.virtual_time)
        else:
            account.queue.push(ticket)
        account.queued_cost += predicted_cost(ticket) / ticket.weight
        self._update_rate(account)
        self.tickets += 1
        self.work += ticket.work
        if ticket.charged_cost:
            self.charge(ticket, 0.0)

    def remove(self, ticket: QueuedTicket) -> None:
        account = self._accounts[ticket.tenant_id]
        assert account.queue, "a listed ticket is in the queue of its tenant"
        account.queue.remove(ticket)
        self._on_ticket_removed(account, ticket)

    def first(self) -> QueuedTicket | None:
        turn = self._waiting.first()
        return turn[-1].queue.first() if turn and turn[-1].queue else None

    def pop_fitting(self, fit: FitFn) -> TakeResult:
        """Take the first ticket that fits, in the order of tenants. Tenants whose tickets do not fit are passed over.

        Tickets behind one that does not fit yet could occupy the capacity for ever. Such a ticket therefore blocks
        tenants that lead its tenant by MAX_LEAD_COST_SHARE of its cost, and its own tenant once it was passed over too
        often.
        """
        result = TakeResult()
        put_back: list[TurnEntry] = []
        barrier = math.inf
        while result.scanned < MAX_TICKETS_SCANNED and (turn := self._waiting.first()) and turn[0] <= barrier:
            account = turn[-1]
            assert account.queue, "a turn belongs to a waiting tenant"
            taken = account.queue.pop_fitting(
                fit, min(MAX_TICKETS_SCANNED_PER_TENANT, MAX_TICKETS_SCANNED - result.scanned)
            )
            result.passed_over += taken.passed_over
            result.scanned += taken.scanned
            if taken.ticket:
                result.ticket = taken.ticket
                break
            if taken.passed_over:
                blocking = taken.passed_over[0]
                lead = MAX_LEAD_COST_SHARE * predicted_cost(blocking) / blocking.weight
                barrier = min(barrier, account.counter + lead)
            result.is_blocked = result.is_blocked or taken.is_blocked
            put_back.append(self._waiting.pop())
        for turn in put_back:
            self._waiting.push(turn)
        result.is_blocked = result.is_blocked and not result.ticket
        if result.ticket:
            self._on_ticket_removed(account, result.ticket)
            self.charge(result.ticket, running_cost(result.ticket, 0))
        return result

    def charge(self, ticket: QueuedTicket, cost: float) -> None:
        account = self._account(ticket.tenant_id)
        account.counter += (cost - ticket.charged_cost) / ticket.weight
        account.served_tokens += (cost - ticket.charged_cost) / ticket.weight
        ticket.charged_cost = cost
        if account.is_waiting:
            self._enqueue_turn(account)

    def position_of(self, ticket: QueuedTicket) -> QueuePosition:
        """Return the work served before a ticket that arrives now, estimated by a sample of the waiting tenants.

        Each of them is served until its counter passes that of the ticket, with tickets that it sends later if those
        that wait are too few.
        """
        own = self._accounts.get(ticket.tenant_id, self._last_served)
        before = own.queue.position_of(ticket) if own.queue else NOTHING_AHEAD
        counter = own.counter if own.is_waiting else max(own.counter, self.virtual_time - self._burst_tokens)
        if own.queue:
            counter += own.queued_cost * before.work / max(1, own.queue.work)
        rivals = self.waiting_tenants - own.is_waiting
        virtual = max(0.0, counter - self.virtual_time)
        if not rivals:
            return before._replace(virtual_tokens=virtual)
        others = [each[-1] for each in self._waiting.sample(TENANT_SAMPLE_SIZE) if each[-1] is not own]
        scale = rivals / max(1, len(others))
        tickets = work = later_tickets = later_work = 0.0
        for other in others:
            if other.queue and other.counter < counter:
                per_ticket = other.queued_cost / other.queue.tickets
                served = (counter - other.counter + per_ticket / 2) / other.queued_cost
                present, later = min(1.0, served), max(0.0, served - 1)
                tickets += present * other.queue.tickets
                work += present * other.queue.work
                later_tickets += later * other.queue.tickets
                later_work += later * other.queue.work
        own_and_others = before.tickets + tickets * scale, before.work + work * scale
        return QueuePosition(*own_and_others, later_tickets * scale, later_work * scale, virtual)

    def burst_credit(self, tenant_id: str, max_credit: float) -> float:
        own = self._account(tenant_id)
        time = self._clock.now(self.virtual_time)
        own.served_tokens = max(own.served_tokens, time - max_credit)
        return -math.inf if own.is_waiting else time - own.served_tokens

    def on_tenant_arrived(self, tenant_id: str) -> None:
        if not self.tickets:
            self._lift_to_remote()
        account = self._account(tenant_id)
        if not account.is_waiting:
            self._lift_to_virtual_time(account)

    def on_expedited_taken(self, tenant_id: str) -> None:
        account = self._account(tenant_id)
        if not account.is_waiting:
            self._last_served = account

    def _lift_to_virtual_time(self, account: TenantAccount) -> None:
        account.counter = max(account.counter, self.virtual_time - self._burst_tokens)

    def _account(self, tenant_id: str) -> TenantAccount:
        found = self._accounts.get(tenant_id)
        if found is None:
            if len(self._accounts) >= self._sweep_at:
                self._sweep()
            found = self._accounts[tenant_id] = TenantAccount(self.virtual_time, self._clock.now(self.virtual_time))
        return found

    def _sweep(self) -> None:
        """Delete accounts that would be lifted to the virtual time anyway."""
        floor = self.virtual_time
        self._accounts = {
            name: each for name, each in self._accounts.items() if each.is_waiting or each.counter > floor
        }
        self._sweep_at = max(MIN_SWEEP_ACCOUNTS, 2 * len(self._accounts))

    def _on_ticket_removed(self, account: TenantAccount, ticket: QueuedTicket) -> None:
        """Update totals and account after a ticket has left the queue of its tenant."""
        assert account.queue, "the ticket was in this queue"
        self.tickets -= 1
        self.work -= ticket.work
        account.queued_cost -= predicted_cost(ticket) / ticket.weight
        if not account.queue.tickets:
            account.queue, account.queued_cost = None, 0.0
            self.waiting_tenants -= 1
            self._last_served = account
        self._update_rate(account)
        if not self.waiting_tenants:
            self.tickets_per_virtual_token = 0.0
            self._clock.stop(self.virtual_time)

    def _update_rate(self, account: TenantAccount) -> None:
        before = account.tickets_per_virtual_token
        cost = account.queued_cost
        account.tickets_per_virtual_token = account.queue.tickets / cost if account.queue and cost > 0 else 0.0
        self.tickets_per_virtual_token = max(
            0.0, self.tickets_per_virtual_token + account.tickets_per_virtual_token - before
        )

    def _enqueue_turn(self, account: TenantAccount) -> None:
        self._turn_count += 1
        account.turn_number = self._turn_count
        head = account.queue.first() if account.queue else None
        self._waiting.push((account.counter, head.arrival_number if head else 0, account.turn_number, account))


def _is_current(turn: TurnEntry) -> bool:
    return turn[-1].turn_number == turn[-2] and turn[-1].is_waiting
