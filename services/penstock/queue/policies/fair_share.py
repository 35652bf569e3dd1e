"""Tenants of one class, the one with the least weighted service first: a virtual token counter for each.

Source: Sheng et al. 2024, Fairness in Serving Large Language Models (OSDI), algorithms 2 and 3: a tenant that returns
is lifted to the least counter of those that wait, a little of the output is charged before it comes, and what has not
come by the end is put right.
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
    8  # tickets of one tenant that are looked at for one that fits, so that others are looked at as well
)
MAX_LEAD_COST_SHARE = (
    0.2  # of what a ticket costs that does not fit yet, by which others may come to be ahead of its tenant
)
TENANT_SAMPLE_SIZE = 32  # tenants that are looked at to tell how much goes before a ticket
MIN_SWEEP_ACCOUNTS = 1_024  # accounts not worth sweeping
NOTHING_AHEAD = QueuePosition(0, 0)

TurnEntry = tuple[float, int, int, "TenantAccount"]  # counter, arrival of the ticket that is first, turn, whose


@dataclass(slots=True, eq=False)
class TenantAccount:
    """One tenant. Its lane is gone while nothing of it waits."""

    counter: float  # weighted tokens it was served, divided by its weight
    served_tokens: float = 0.0  # the same by the clock of credit
    turn_number: int = 0  # outdates the entries that heaps still have of it
    queue: RankedQueue | None = None
    queued_cost: float = 0.0  # what its waiting tickets will add to the counter

    @property
    def is_waiting(self) -> bool:
        return self.queue is not None


class WeightedVtc:
    """`burst`: weighted tokens by which a tenant that was served less than its share may stand below the others when it
    returns, so that one inside its share does not queue behind those that exceed theirs; it adds to the bound.
    """

    def __init__(self, rank: Rank = fifo, burst_tokens: float = 0.0) -> None:
        self._rank = rank
        self._burst_tokens = burst_tokens
        self._accounts: dict[str, TenantAccount] = {}
        self._waiting: LazyHeap[TurnEntry] = LazyHeap(_is_current)
        self.tickets = 0
        self.work = 0
        self._waiting_tenants = 0  # that wait
        self._turn_count = 0
        self._last_served = TenantAccount(0.0)  # whose last ticket went most recently
        self._virtual_time = 0.0
        self._remote_virtual_time: float | None = None  # how far other shards have come; None: nobody has said
        self.lifted_tokens = 0.0  # tokens that counters are taken to stand higher when shards are compared
        self._sweep_at = MIN_SWEEP_ACCOUNTS
        self._clock = VirtualClock()

    def __iter__(self) -> Iterator[QueuedTicket]:
        return (ticket for account in self._accounts.values() if account.queue for ticket in account.queue)

    def __len__(self) -> int:
        """Count the tenants whose service is remembered."""
        return len(self._accounts)

    @property
    def virtual_tokens(self) -> float:
        turn = self._waiting.first()
        assert turn, "the turn is a waiting tenant's"
        return turn[0] + self.lifted_tokens

    @property
    def virtual_time(self) -> float:
        """Virtual time: counter of a tenant that comes now for the first time, the least of those that wait.

        It never goes back, or whoever catches up would take others down with him.
        """
        turn = self._waiting.first()
        self._virtual_time = max(self._virtual_time, turn[0] if turn else self._last_served.counter)
        return self._virtual_time

    def counter(self, tenant_id: str) -> float:
        found = self._accounts.get(tenant_id)
        return found.counter if found else self.virtual_time

    def advance_virtual_time(self, virtual_tokens: float) -> None:
        """As `Order.keep_up`. Those that wait are owed what they lag behind, unless they came before the first word."""
        is_first = self._remote_virtual_time is None
        self._remote_virtual_time = max(self._remote_virtual_time or 0.0, virtual_tokens)
        if is_first:
            self._lift_to_remote()

    def _lift_to_remote(self) -> None:
        """Take whoever comes now to have come to other shards: with neither credit nor debt."""
        if self._remote_virtual_time is not None:
            self.lifted_tokens = max(self.lifted_tokens, self._remote_virtual_time - self.virtual_time)

    def push(self, ticket: QueuedTicket) -> None:
        if not self.tickets and not ticket.charged_cost:
            self._lift_to_remote()
        account = self._account(ticket.tenant_id)
        if account.queue is None:
            if not ticket.charged_cost:  # else it is given back, and its tenant had not left
                self._lift_to_virtual_time(account)
            account.queue = RankedQueue(self._rank)
            self._waiting_tenants += 1
            account.queue.push(ticket)
            self._enqueue_turn(account)
            if self._waiting_tenants == 1:
                self._clock.start(self.virtual_time)
        else:
            account.queue.push(ticket)
        account.queued_cost += predicted_cost(ticket) / ticket.weight
        self.tickets += 1
        self.work += ticket.work
        if ticket.charged_cost:
            self.charge(ticket, 0.0)

    def remove(self, ticket: QueuedTicket) -> None:
        account = self._accounts[ticket.tenant_id]
        assert account.queue, "a listed ticket has a lane"
        account.queue.remove(ticket)
        self._on_ticket_removed(account, ticket)

    def first(self) -> QueuedTicket | None:
        turn = self._waiting.first()
        return turn[-1].queue.first() if turn and turn[-1].queue else None

    def pop_fitting(self, fit: FitFn) -> TakeResult:
        """Look past tenants whose tickets do not fit: a slot that others can use is not theirs to hold.

        But those behind could keep it small for ever, so one that does not fit yet bars others as soon as they are
        ahead of its tenant by `LEAD` of what it costs; and its own tenant once it was passed too often.
        """
        found = TakeResult()
        put_back: list[TurnEntry] = []
        barrier = math.inf
        while found.scanned < MAX_TICKETS_SCANNED and (turn := self._waiting.first()) and turn[0] <= barrier:
            account = turn[-1]
            assert account.queue, "a turn is a waiting tenant's"
            taken = account.queue.pop_fitting(
                fit, min(MAX_TICKETS_SCANNED_PER_TENANT, MAX_TICKETS_SCANNED - found.scanned)
            )
            found.passed_over += taken.passed_over
            found.scanned += taken.scanned
            if taken.ticket:
                found.ticket = taken.ticket
                break
            if taken.passed_over:
                barring = taken.passed_over[0]
                barrier = min(barrier, account.counter + MAX_LEAD_COST_SHARE * predicted_cost(barring) / barring.weight)
            found.is_blocked = found.is_blocked or taken.is_blocked
            put_back.append(self._waiting.pop())
        for turn in put_back:
            self._waiting.push(turn)
        found.is_blocked = found.is_blocked and not found.ticket
        if found.ticket:
            self._on_ticket_removed(account, found.ticket)
            self.charge(found.ticket, running_cost(found.ticket, 0))
        return found

    def charge(self, ticket: QueuedTicket, cost: float) -> None:
        account = self._account(ticket.tenant_id)
        account.counter += (cost - ticket.charged_cost) / ticket.weight
        account.served_tokens += (cost - ticket.charged_cost) / ticket.weight
        ticket.charged_cost = cost
        if account.is_waiting:
            self._enqueue_turn(account)

    def position_of(self, ticket: QueuedTicket) -> QueuePosition:
        """Say what goes until the ticket's tenant has come to it and no other is owed more; many, by a sample."""
        own = self._accounts.get(ticket.tenant_id, self._last_served)
        before = own.queue.position_of(ticket) if own.queue else NOTHING_AHEAD
        counter = own.counter if own.is_waiting else max(own.counter, self.virtual_time - self._burst_tokens)
        if own.queue:
            counter += own.queued_cost * before.work / max(1, own.queue.work)
        rivals = self._waiting_tenants - own.is_waiting
        if not rivals:
            return before
        others = [each[-1] for each in self._waiting.sample(TENANT_SAMPLE_SIZE) if each[-1] is not own]
        scale = rivals / max(1, len(others))
        tickets = work = 0.0
        for other in others:
            if other.queue and other.counter < counter:
                per_ticket = other.queued_cost / other.queue.tickets
                share = min(1.0, (counter - other.counter + per_ticket / 2) / other.queued_cost)
                tickets += share * other.queue.tickets
                work += share * other.queue.work
        return QueuePosition(before.tickets + tickets * scale, before.work + work * scale)

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
        """Forget those that would be lifted anyway."""
        floor = self.virtual_time
        self._accounts = {
            name: each for name, each in self._accounts.items() if each.is_waiting or each.counter > floor
        }
        self._sweep_at = max(MIN_SWEEP_ACCOUNTS, 2 * len(self._accounts))

    def _on_ticket_removed(self, account: TenantAccount, ticket: QueuedTicket) -> None:
        """Note that a ticket is out of its account's lane."""
        assert account.queue, "it has just been there"
        self.tickets -= 1
        self.work -= ticket.work
        account.queued_cost -= predicted_cost(ticket) / ticket.weight
        if not account.queue.tickets:
            account.queue, account.queued_cost = None, 0.0
            self._waiting_tenants -= 1
            self._last_served = account
            if not self._waiting_tenants:
                self._clock.stop(self.virtual_time)

    def _enqueue_turn(self, account: TenantAccount) -> None:
        self._turn_count += 1
        account.turn_number = self._turn_count
        head = account.queue.first() if account.queue else None
        self._waiting.push((account.counter, head.arrival_number if head else 0, account.turn_number, account))


def _is_current(turn: TurnEntry) -> bool:
    return turn[-1].turn_number == turn[-2] and turn[-1].is_waiting
