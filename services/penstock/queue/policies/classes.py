"""Classes, the higher first, each with its own line; a lower one keeps a small share so that nothing starves."""

from collections.abc import Callable, Iterator
from itertools import chain

from penstock.queue.lazy_heap import LazyHeap
from penstock.queue.policies.cost import cost_so_far
from penstock.queue.policies.lane import Lane, Taken, is_current, pass_by
from penstock.queue.policies.line import Line
from penstock.queue.policies.order import Ahead, FitOf, Key, Load
from penstock.queue.policies.urgency import UrgentLane
from penstock.queue.waiting import WaitingTicket

Newest = tuple[float, int, int, WaitingTicket]  # minus first enqueue, minus arrival, listing, ticket


class ClassLine:
    """One class: work that resumes, then what is urgent, then the others in their line; once asked for, the newest."""

    def __init__(self, priority: int, line: Line) -> None:
        self.priority = priority
        self.line = line
        self.resumed = Lane()
        self.urgent = UrgentLane()
        self.tickets = self.tokens = 0  # all
        self._fresh_tickets = self._fresh_tokens = 0  # what does not resume
        self.owed = 0.0  # tokens of work that its share has come to while others were served
        self._newest: LazyHeap[Newest] | None = None

    @property
    def fresh(self) -> Load:
        return Load(self._fresh_tickets, self._fresh_tokens)

    @property
    def work(self) -> int:
        return self.resumed.work + self.urgent.work + self.line.work

    def ahead(self, ticket: WaitingTicket) -> Ahead:
        """Return what of the class goes before one of its tickets that comes now."""
        tickets, work = self.resumed.tickets, self.resumed.work
        if ticket.resumes:
            return Ahead(tickets, work)
        tickets, work = tickets + self.urgent.tickets, work + self.urgent.work
        if ticket.is_urgent:
            return Ahead(tickets, work)
        ahead = self.line.ahead(ticket)
        return Ahead(tickets + ahead.tickets, work + ahead.work) if tickets else ahead

    def push(self, ticket: WaitingTicket) -> None:
        assert not ticket.is_listed, "a ticket stands in one place"
        self._count(ticket, 1)
        if ticket.goes_first and ticket.charged:
            self.line.charge(ticket, 0.0)
        elif ticket.is_urgent and not self.urgent.has(ticket.tenant_id):
            self.line.welcome(ticket.tenant_id)
        self.place_of(ticket).push(ticket)
        if not ticket.resumes and self._newest is not None:
            self._newest.push(_newest(ticket))

    def remove(self, ticket: WaitingTicket) -> None:
        if ticket.is_listed:
            self.place_of(ticket).remove(ticket)
            self._count(ticket, -1)

    def is_urgent(self, ticket: WaitingTicket) -> bool:
        if ticket.resumes:
            return False
        return self.urgent.costs_with(ticket) <= self.line.credit(ticket.tenant_id, self.urgent.most(ticket))

    def head(self) -> tuple[WaitingTicket, Key] | None:
        if ticket := self.resumed.first() or self.urgent.first():
            return ticket, Key(self.priority, 0.0, ticket.enqueued)
        if ticket := self.line.first():
            return ticket, Key(self.priority, self.line.virtual_tokens, ticket.enqueued, self.line.lifted)
        return None

    def take(self, fit: FitOf) -> Taken:
        found, late = Taken(), list[WaitingTicket]()
        for place in (self.resumed, self.urgent, self.line):
            if not place.tickets:
                continue
            found = place.take(fit)
            found.late += late
            late = found.late
            if found.ticket or found.is_barred:
                break
        if found.ticket:
            if found.ticket.goes_first:
                self.line.charge(found.ticket, cost_so_far(found.ticket, 0))
                self.line.passed(found.ticket.tenant_id)
            self.urgent.note(found.ticket)
            self._count(found.ticket, -1)
            found.passed()
        return found

    def newest(self) -> WaitingTicket | None:
        if self._newest is None:
            self._newest = LazyHeap(is_current)
            for ticket in chain(self.urgent, self.line):
                self._newest.push(_newest(ticket))
        entry = self._newest.first()
        return entry[-1] if entry else None

    def place_of(self, ticket: WaitingTicket) -> Lane | Line:
        if ticket.resumes:
            return self.resumed
        return self.urgent if ticket.is_urgent else self.line

    def _count(self, ticket: WaitingTicket, sign: int) -> None:
        tokens = sign * ticket.tokens
        self.tickets += sign
        self.tokens += tokens
        if not ticket.resumes:
            self._fresh_tickets += sign
            self._fresh_tokens += tokens
        if not self.tickets:
            self.owed = 0.0


class Classes:
    """One `ClassLine` per priority.

    A class is served when those above it are empty, or when `floor` of the tokens that went while it waited come to
    its first ticket: of any W tokens that go while it waits it gets floor * W, less two tickets.
    """

    def __init__(self, new_line: Callable[[], Line], floor: float) -> None:
        self._new_line = new_line
        self._floor = floor
        self._classes: dict[int, ClassLine] = {}  # by priority, ascending

    @property
    def load(self) -> Load:
        tickets = tokens = 0
        for each in self._classes.values():
            tickets += each.tickets
            tokens += each.tokens
        return Load(tickets, tokens)

    def __getitem__(self, priority: int) -> ClassLine:
        if priority not in self._classes:
            added = ClassLine(priority, self._new_line())
            self._classes = dict(sorted([*self._classes.items(), (priority, added)]))
        return self._classes[priority]

    def push(self, ticket: WaitingTicket) -> None:
        own = self[ticket.priority]
        if ticket.charged:
            self._note_served(own, -ticket.work)
        own.push(ticket)

    def remove(self, ticket: WaitingTicket) -> None:
        if own := self._classes.get(ticket.priority):
            own.remove(ticket)

    def take(self, fit: FitOf) -> WaitingTicket | None:
        late: list[WaitingTicket] = []
        for each in self._turns():
            found = each.take(fit)
            if found.ticket:
                pass_by(late)
                self._note_served(each, found.ticket.work)
            if found.ticket or found.is_barred:
                return found.ticket
            late += found.late
        return None

    def charge(self, ticket: WaitingTicket, cost: float) -> None:
        self[ticket.priority].line.charge(ticket, cost)

    def head(self) -> tuple[WaitingTicket, Key] | None:
        """Return the best by class even while a lower class has its turn: the shard is as urgent as its best ticket."""
        return next((found for each in self._classes.values() if (found := each.head())), None)

    def is_urgent(self, ticket: WaitingTicket) -> bool:
        return self[ticket.priority].is_urgent(ticket)

    def keep_up(self, priority: int, virtual_tokens: float) -> None:
        self[priority].line.keep_up(virtual_tokens)

    def ahead(self, ticket: WaitingTicket) -> Ahead:
        tickets = work = 0.0
        for each in self._classes.values():
            if each.priority > ticket.priority:
                break
            if each.priority == ticket.priority:
                own = each.ahead(ticket)
                return Ahead(tickets + own.tickets, work + own.work) if tickets else own
            tickets += each.tickets
            work += each.work
        return Ahead(tickets, work)

    def evictable(self, priority: int) -> Load:
        lower = [each.fresh for each in self._classes.values() if each.priority > priority]
        return Load(sum(each.tickets for each in lower), sum(each.tokens for each in lower))

    def next_evicted(self, priority: int) -> tuple[WaitingTicket, Key] | None:
        for each in reversed(self._classes.values()):
            if each.priority > priority and (ticket := each.newest()):
                return ticket, Key(each.priority, 0.0, ticket.enqueued)
        return None

    def _turns(self) -> list[ClassLine]:
        waiting = [each for each in self._classes.values() if each.tickets]
        owed = [each for each in waiting[1:] if self._is_owed(each)]
        return [*owed, *waiting] if owed else waiting

    def _is_owed(self, each: ClassLine) -> bool:
        head = each.head()
        return head is not None and each.owed >= head[0].work

    def _note_served(self, served: ClassLine, work: int) -> None:
        """Note what went, or with a negative sign came back."""
        for each in self._classes.values():
            if each.tickets:
                each.owed = max(0.0, each.owed + work * self._floor)
        if work > 0 or any(each.tickets for each in self._above(served)):
            served.owed = max(0.0, served.owed - work)

    def _above(self, other: ClassLine) -> Iterator[ClassLine]:
        return (each for each in self._classes.values() if each.priority < other.priority)


def _newest(ticket: WaitingTicket) -> Newest:
    return (-ticket.enqueued, -ticket.arrival, ticket.listing, ticket)
