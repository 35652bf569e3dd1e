"""Tenants of one class, the one with the least weighted service first: a virtual token counter for each.

Source: Sheng et al. 2024, Fairness in Serving Large Language Models (OSDI), algorithms 2 and 3: a tenant that returns
is lifted to the least counter of those that wait, a little of the output is charged before it comes, and what has not
come by the end is put right.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.queue.lazy_heap import LazyHeap
from penstock.queue.policies.cost import cost_so_far, predicted_cost
from penstock.queue.policies.lane import LOOK_PAST, Lane, Taken
from penstock.queue.policies.order import Ahead, FitOf
from penstock.queue.policies.ranks import Rank, fifo
from penstock.queue.policies.urgency import Clock
from penstock.queue.waiting import WaitingTicket

LOOK_PER_TENANT = 8  # tickets of one tenant that are looked at for one that fits, so that others are looked at as well
LEAD = 0.2  # of what a ticket costs that does not fit yet, by which others may come to be ahead of its tenant
SAMPLE = 32  # tenants that are looked at to tell how much goes before a ticket
SWEEP = 1_024  # accounts not worth sweeping
NOBODY = Ahead(0, 0)

Turn = tuple[float, int, int, "Account"]  # counter, arrival of the ticket that is first, turn, whose


@dataclass(slots=True, eq=False)
class Account:
    """One tenant. Its lane is gone while nothing of it waits."""

    counter: float  # weighted tokens it was served, divided by its weight
    served: float = 0.0  # the same by the clock of credit
    turn: int = 0  # outdates the entries that heaps still have of it
    lane: Lane | None = None
    virtual: float = 0.0  # what its waiting tickets will add to the counter

    @property
    def waits(self) -> bool:
        return self.lane is not None


class FairTenants:
    """`burst`: weighted tokens by which a tenant that was served less than its share may stand below the others when it
    returns, so that one inside its share does not queue behind those that exceed theirs; it adds to the bound.
    """

    def __init__(self, rank: Rank = fifo, burst: float = 0.0) -> None:
        self._rank = rank
        self._burst = burst
        self._accounts: dict[str, Account] = {}
        self._waiting: LazyHeap[Turn] = LazyHeap(_is_current)
        self.tickets = 0
        self.work = 0
        self._tenants = 0  # that wait
        self._turns = 0
        self._last = Account(0.0)  # whose last ticket went most recently
        self._time = 0.0
        self._elsewhere: float | None = None  # how far other shards have come; None: nobody has said
        self.lifted = 0.0  # tokens that counters are taken to stand higher when shards are compared
        self._sweep_at = SWEEP
        self._clock = Clock()

    def __iter__(self) -> Iterator[WaitingTicket]:
        return (ticket for account in self._accounts.values() if account.lane for ticket in account.lane)

    def __len__(self) -> int:
        """Count the tenants whose service is remembered."""
        return len(self._accounts)

    @property
    def virtual_tokens(self) -> float:
        turn = self._waiting.first()
        assert turn, "the turn is a waiting tenant's"
        return turn[0] + self.lifted

    @property
    def floor(self) -> float:
        """Virtual time: counter of a tenant that comes now for the first time, the least of those that wait.

        It never goes back, or whoever catches up would take others down with him.
        """
        turn = self._waiting.first()
        self._time = max(self._time, turn[0] if turn else self._last.counter)
        return self._time

    def counter(self, tenant_id: str) -> float:
        found = self._accounts.get(tenant_id)
        return found.counter if found else self.floor

    def keep_up(self, virtual_tokens: float) -> None:
        """As `Order.keep_up`. Those that wait are owed what they lag behind, unless they came before the first word."""
        is_first = self._elsewhere is None
        self._elsewhere = max(self._elsewhere or 0.0, virtual_tokens)
        if is_first:
            self._lift()

    def _lift(self) -> None:
        """Take whoever comes now to have come to other shards: with neither credit nor debt."""
        if self._elsewhere is not None:
            self.lifted = max(self.lifted, self._elsewhere - self.floor)

    def push(self, ticket: WaitingTicket) -> None:
        if not self.tickets and not ticket.charged:
            self._lift()
        account = self._account(ticket.tenant_id)
        if account.lane is None:
            if not ticket.charged:  # else it is given back, and its tenant had not left
                self._raise(account)
            account.lane = Lane(self._rank)
            self._tenants += 1
            account.lane.push(ticket)
            self._queue(account)
            if self._tenants == 1:
                self._clock.begin(self.floor)
        else:
            account.lane.push(ticket)
        account.virtual += predicted_cost(ticket) / ticket.weight
        self.tickets += 1
        self.work += ticket.work
        if ticket.charged:
            self.charge(ticket, 0.0)

    def remove(self, ticket: WaitingTicket) -> None:
        account = self._accounts[ticket.tenant_id]
        assert account.lane, "a listed ticket has a lane"
        account.lane.remove(ticket)
        self._left(account, ticket)

    def first(self) -> WaitingTicket | None:
        turn = self._waiting.first()
        return turn[-1].lane.first() if turn and turn[-1].lane else None

    def take(self, fit: FitOf) -> Taken:
        """Look past tenants whose tickets do not fit: a slot that others can use is not theirs to hold.

        But those behind could keep it small for ever, so one that does not fit yet bars others as soon as they are
        ahead of its tenant by `LEAD` of what it costs; and its own tenant once it was passed too often.
        """
        found = Taken()
        put_back: list[Turn] = []
        barrier = math.inf
        while found.looked_at < LOOK_PAST and (turn := self._waiting.first()) and turn[0] <= barrier:
            account = turn[-1]
            assert account.lane, "a turn is a waiting tenant's"
            taken = account.lane.take(fit, min(LOOK_PER_TENANT, LOOK_PAST - found.looked_at))
            found.late += taken.late
            found.looked_at += taken.looked_at
            if taken.ticket:
                found.ticket = taken.ticket
                break
            if taken.late:
                barring = taken.late[0]
                barrier = min(barrier, account.counter + LEAD * predicted_cost(barring) / barring.weight)
            found.is_barred = found.is_barred or taken.is_barred
            put_back.append(self._waiting.pop())
        for turn in put_back:
            self._waiting.push(turn)
        found.is_barred = found.is_barred and not found.ticket
        if found.ticket:
            self._left(account, found.ticket)
            self.charge(found.ticket, cost_so_far(found.ticket, 0))
        return found

    def charge(self, ticket: WaitingTicket, cost: float) -> None:
        account = self._account(ticket.tenant_id)
        account.counter += (cost - ticket.charged) / ticket.weight
        account.served += (cost - ticket.charged) / ticket.weight
        ticket.charged = cost
        if account.waits:
            self._queue(account)

    def ahead(self, ticket: WaitingTicket) -> Ahead:
        """Say what goes until the ticket's tenant has come to it and no other is owed more; many, by a sample."""
        own = self._accounts.get(ticket.tenant_id, self._last)
        before = own.lane.ahead(ticket) if own.lane else NOBODY
        counter = own.counter if own.waits else max(own.counter, self.floor - self._burst)
        if own.lane:
            counter += own.virtual * before.work / max(1, own.lane.work)
        rivals = self._tenants - own.waits
        if not rivals:
            return before
        others = [each[-1] for each in self._waiting.sample(SAMPLE) if each[-1] is not own]
        scale = rivals / max(1, len(others))
        tickets = work = 0.0
        for other in others:
            if other.lane and other.counter < counter:
                per_ticket = other.virtual / other.lane.tickets
                share = min(1.0, (counter - other.counter + per_ticket / 2) / other.virtual)
                tickets += share * other.lane.tickets
                work += share * other.lane.work
        return Ahead(before.tickets + tickets * scale, before.work + work * scale)

    def credit(self, tenant_id: str, most: float) -> float:
        own = self._account(tenant_id)
        time = self._clock.now(self.floor)
        own.served = max(own.served, time - most)
        return -math.inf if own.waits else time - own.served

    def welcome(self, tenant_id: str) -> None:
        if not self.tickets:
            self._lift()
        account = self._account(tenant_id)
        if not account.waits:
            self._raise(account)

    def passed(self, tenant_id: str) -> None:
        account = self._account(tenant_id)
        if not account.waits:
            self._last = account

    def _raise(self, account: Account) -> None:
        account.counter = max(account.counter, self.floor - self._burst)

    def _account(self, tenant_id: str) -> Account:
        found = self._accounts.get(tenant_id)
        if found is None:
            if len(self._accounts) >= self._sweep_at:
                self._sweep()
            found = self._accounts[tenant_id] = Account(self.floor, self._clock.now(self.floor))
        return found

    def _sweep(self) -> None:
        """Forget those that would be lifted anyway."""
        floor = self.floor
        self._accounts = {name: each for name, each in self._accounts.items() if each.waits or each.counter > floor}
        self._sweep_at = max(SWEEP, 2 * len(self._accounts))

    def _left(self, account: Account, ticket: WaitingTicket) -> None:
        """Note that a ticket is out of its account's lane."""
        assert account.lane, "it has just been there"
        self.tickets -= 1
        self.work -= ticket.work
        account.virtual -= predicted_cost(ticket) / ticket.weight
        if not account.lane.tickets:
            account.lane, account.virtual = None, 0.0
            self._tenants -= 1
            self._last = account
            if not self._tenants:
                self._clock.end(self.floor)

    def _queue(self, account: Account) -> None:
        self._turns += 1
        account.turn = self._turns
        head = account.lane.first() if account.lane else None
        self._waiting.push((account.counter, head.arrival if head else 0, account.turn, account))


def _is_current(turn: Turn) -> bool:
    return turn[-1].turn == turn[-2] and turn[-1].waits
