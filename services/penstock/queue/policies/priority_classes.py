"""Priority classes: higher classes are dispatched first, and each lower class keeps a minimum share."""

from collections.abc import Callable, Iterator

from penstock.queue.policies.burst_credit import ExpressLane
from penstock.queue.policies.cost import running_cost
from penstock.queue.policies.eviction_order import EvictionOrder
from penstock.queue.policies.policy import ClassBacklog, FitFn, QueuePosition, SortKey, TicketTotals
from penstock.queue.policies.ranked_queue import RankedQueue, TakeResult, record_passes
from penstock.queue.policies.tenant_queue import SharedQueue, TenantQueue
from penstock.queue.ticket import QueuedTicket


class PriorityClass:
    """One class: resumed tickets first, then express tickets, then the others in the order of their tenants."""

    def __init__(self, priority: int, tenant_queue: TenantQueue) -> None:
        self.priority = priority
        self.tenant_queue = tenant_queue
        self.resumed = RankedQueue()
        self.express = ExpressLane()
        self.tickets = self.tokens = 0  # totals
        self._evictable_tickets = self._evictable_tokens = 0  # totals without resumed tickets
        self.owed_tokens = 0.0  # tokens of its minimum share that it has not been served yet
        self._evictable = EvictionOrder()

    @property
    def evictable(self) -> TicketTotals:
        return TicketTotals(self._evictable_tickets, self._evictable_tokens)

    @property
    def work(self) -> int:
        return self.resumed.work + self.express.work + self.tenant_queue.work

    def position_of(self, ticket: QueuedTicket) -> QueuePosition:
        """Return the work of this class that is served before one of its tickets that arrives now."""
        tickets, work = self.resumed.tickets, self.resumed.work
        if ticket.is_resumed:
            return QueuePosition(tickets, work)
        tickets, work = tickets + self.express.tickets, work + self.express.work
        if ticket.is_express:
            return QueuePosition(tickets, work)
        ahead = self.tenant_queue.position_of(ticket)
        return ahead._replace(tickets=tickets + ahead.tickets, work=work + ahead.work) if tickets else ahead

    def push(self, ticket: QueuedTicket) -> None:
        assert not ticket.is_listed, "a ticket is listed once"
        self._adjust_totals(ticket, 1)
        if ticket.is_expedited and ticket.charged_cost:
            self.tenant_queue.charge(ticket, 0.0)
        elif ticket.is_express and not self.express.has_tenant(ticket.tenant_id):
            self.tenant_queue.on_tenant_arrived(ticket.tenant_id)
        self.queue_of(ticket).push(ticket)
        if not ticket.is_resumed:
            self._evictable.push(ticket)

    def remove(self, ticket: QueuedTicket) -> None:
        if ticket.is_listed:
            self.queue_of(ticket).remove(ticket)
            self._on_removed(ticket)

    def is_express(self, ticket: QueuedTicket) -> bool:
        if ticket.is_resumed or ticket.is_guest:
            return False
        return self.express.queued_cost_with(ticket) <= self.tenant_queue.burst_credit(
            ticket.tenant_id, self.express.max_credit(ticket)
        )

    def head(self) -> tuple[QueuedTicket, SortKey] | None:
        if ticket := self.resumed.first() or self.express.first():
            return ticket, SortKey(self.priority, 0.0, ticket.enqueued)
        if ticket := self.tenant_queue.first():
            return ticket, SortKey(
                self.priority, self.tenant_queue.virtual_tokens, ticket.enqueued, self.tenant_queue.lifted_tokens
            )
        return None

    def pop_fitting(self, fit: FitFn) -> TakeResult:
        result, passed_over = TakeResult(), list[QueuedTicket]()
        for queue in (self.resumed, self.express, self.tenant_queue):
            if not queue.tickets:
                continue
            result = queue.pop_fitting(fit)
            result.passed_over += passed_over
            passed_over = result.passed_over
            if result.ticket or result.is_blocked:
                break
        if result.ticket:
            if result.ticket.is_expedited:
                self.tenant_queue.charge(result.ticket, running_cost(result.ticket, 0))
                self.tenant_queue.on_expedited_taken(result.ticket.tenant_id)
            self.express.record_size(result.ticket)
            self._on_removed(result.ticket)
            result.record_passes()
        return result

    def newest(self) -> QueuedTicket | None:
        """Return the ticket that is evicted first; None if only resumed tickets wait."""
        return self._evictable.newest()

    def queue_of(self, ticket: QueuedTicket) -> RankedQueue | TenantQueue:
        if ticket.is_resumed:
            return self.resumed
        return self.express if ticket.is_express else self.tenant_queue

    def _on_removed(self, ticket: QueuedTicket) -> None:
        self._adjust_totals(ticket, -1)
        if not ticket.is_resumed:
            self._evictable.remove(ticket)

    def _adjust_totals(self, ticket: QueuedTicket, sign: int) -> None:
        tokens = sign * ticket.tokens
        self.tickets += sign
        self.tokens += tokens
        if not ticket.is_resumed:
            self._evictable_tickets += sign
            self._evictable_tokens += tokens
        if not self.tickets:
            self.owed_tokens = 0.0


class PriorityClasses:
    """One `PriorityClass` per priority.

    A class is served if all classes above it are empty, or if `min_share` of the tokens dispatched while it waited
    covers its first ticket. Of any W tokens dispatched while it waits, it gets at least `min_share` * W, less two
    tickets.
    """

    def __init__(self, new_tenant_queue: Callable[[], TenantQueue], min_share: float) -> None:
        self._new_tenant_queue = new_tenant_queue
        self._min_share = min_share
        self._classes: dict[int, PriorityClass] = {}  # by priority, ascending

    @property
    def totals(self) -> TicketTotals:
        tickets = tokens = 0
        for each in self._classes.values():
            tickets += each.tickets
            tokens += each.tokens
        return TicketTotals(tickets, tokens)

    def __getitem__(self, priority: int) -> PriorityClass:
        if priority not in self._classes:
            added = PriorityClass(priority, self._new_tenant_queue())
            self._classes = dict(sorted([*self._classes.items(), (priority, added)]))
        return self._classes[priority]

    def push(self, ticket: QueuedTicket) -> None:
        own = self[ticket.priority]
        if ticket.charged_cost:
            self._record_served(own, -ticket.work)
        own.push(ticket)

    def remove(self, ticket: QueuedTicket) -> None:
        if own := self._classes.get(ticket.priority):
            own.remove(ticket)

    def pop_fitting(self, fit: FitFn) -> QueuedTicket | None:
        passed_over: list[QueuedTicket] = []
        for each in self._classes_in_turn():
            result = each.pop_fitting(fit)
            if result.ticket:
                record_passes(passed_over)
                self._record_served(each, result.ticket.work)
            if result.ticket or result.is_blocked:
                return result.ticket
            passed_over += result.passed_over
        return None

    def charge(self, ticket: QueuedTicket, cost: float) -> None:
        self[ticket.priority].tenant_queue.charge(ticket, cost)

    def head(self) -> tuple[QueuedTicket, SortKey] | None:
        """Return the head of the highest waiting class, also while a lower class has its turn."""
        return next((found for each in self._classes.values() if (found := each.head())), None)

    def is_express(self, ticket: QueuedTicket) -> bool:
        return self[ticket.priority].is_express(ticket)

    def advance_virtual_time(self, priority: int, virtual_tokens: float) -> None:
        self[priority].tenant_queue.advance_virtual_time(virtual_tokens)

    def position_of(self, ticket: QueuedTicket) -> QueuePosition:
        tickets = work = 0.0
        for each in self._classes.values():
            if each.priority > ticket.priority:
                break
            if each.priority == ticket.priority:
                own = each.position_of(ticket)
                return own._replace(tickets=tickets + own.tickets, work=work + own.work) if tickets else own
            tickets += each.tickets
            work += each.work
        return QueuePosition(tickets, work)

    def class_backlog(self, priority: int) -> ClassBacklog:
        own = self[priority]
        tenants = own.tenant_queue
        return ClassBacklog(own.tickets, tenants.waiting_tenants, tenants.tickets_per_virtual_token)

    def evictable(self, priority: int) -> TicketTotals:
        lower = [each.evictable for each in self._classes.values() if each.priority > priority]
        return TicketTotals(sum(each.tickets for each in lower), sum(each.tokens for each in lower))

    def next_victim(self, priority: int) -> tuple[QueuedTicket, SortKey] | None:
        for each in reversed(self._classes.values()):
            if each.priority > priority and (ticket := each.newest()):
                return ticket, SortKey(each.priority, 0.0, ticket.enqueued)
        return None

    def _classes_in_turn(self) -> list[PriorityClass]:
        waiting = [each for each in self._classes.values() if each.tickets]
        owed = [each for each in waiting[1:] if self._is_owed(each)]
        return [*owed, *waiting] if owed else waiting

    def _is_owed(self, each: PriorityClass) -> bool:
        head = each.head()
        return head is not None and each.owed_tokens >= head[0].work

    def _record_served(self, served: PriorityClass, work: int) -> None:
        """Record dispatched work; negative work was returned."""
        for each in self._classes.values():
            if each.tickets:
                each.owed_tokens = max(0.0, each.owed_tokens + work * self._min_share)
        if work > 0 or any(each.tickets for each in self._above(served)):
            served.owed_tokens = max(0.0, served.owed_tokens - work)

    def _above(self, other: PriorityClass) -> Iterator[PriorityClass]:
        return (each for each in self._classes.values() if each.priority < other.priority)


class ClassFifo(PriorityClasses):
    """First come, first served within each class, without fairness between tenants and without minimum shares."""

    def __init__(self) -> None:
        super().__init__(SharedQueue, min_share=0.0)
