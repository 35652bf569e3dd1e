"""Tickets and a book of them, for the tests of the queue."""

from dataclasses import dataclass, field

from penstock.mesh.v1.ticket_pb2 import CatalogEntry, Lease
from penstock.queue import effects as out
from penstock.queue.book import DEFAULT_POLICY, TicketBook
from penstock.queue.bounds import QueueLimits
from penstock.queue.placed import RecentLeases
from penstock.queue.policies.choice import PolicyConfig
from penstock.queue.presence import ModelAvailability
from penstock.queue.promises import TtftTargets
from penstock.queue.seats import Credit
from penstock.queue.waiting import QueuedTicket

INTERACTIVE, STANDARD, BATCH = 1, 2, 3
WARM_UP, PATIENCE, MEMORY = 5.0, 10.0, 10.0  # s
START = 1_000.0  # s; unix time of the book's start


def ticket(ticket_id, *, edge="e", tokens=100, priority=STANDARD, enqueued=START, attempt=1, deadline=0.0, **more):
    return QueuedTicket(
        **{"tenant_id": "acme", "model": "m", "weight": 1.0} | more,
        ticket_id=ticket_id,
        edge=edge,
        priority=priority,
        prompt_tokens=tokens - 10,
        max_output_tokens=10,
        deadline=deadline,
        enqueued=enqueued,
        attempt=attempt,
    )


def entry(model="m", workers=1):
    return CatalogEntry(model=model, card_digest="d", worker_address="w:1", workers_hint=workers)


@dataclass
class Shard:
    """A book with edges `e` and `f` and what it said, by calls that read like frames."""

    max_depth: int = 1_000
    max_tokens: int = 1_000_000
    now: float = START
    order: PolicyConfig = DEFAULT_POLICY
    promises: TtftTargets = field(default_factory=TtftTargets)
    said: list = field(default_factory=list)

    def __post_init__(self):
        self.book = TicketBook(
            limits=QueueLimits(self.max_depth, self.max_tokens),
            availability=ModelAvailability(timeout=PATIENCE, warm_up=WARM_UP, started_at=START),
            recent_leases=RecentLeases(MEMORY),
            ttft_targets=self.promises,
            new_policy=self.order,
        )
        for edge in ("e", "f"):
            self.book.on_edge_connected(edge)

    def hear(self, effects):
        self.said += effects
        return effects

    def join(self, scheduler="s", models=("m",)):
        self.hear(self.book.on_scheduler_connected(scheduler, self.now))
        self.serve(scheduler, models)

    def serve(self, scheduler, models):
        self.hear(self.book.on_catalog(scheduler, [entry(model) for model in models], self.now))

    def lose(self, scheduler):
        return self.hear(self.book.on_scheduler_disconnected(scheduler, self.now))

    def enqueue(self, ticket_id, **fields):
        return self.hear(self.book.enqueue(ticket(ticket_id, **fields), self.now))

    def withdraw(self, *ticket_ids, edge="e"):
        return self.hear(self.book.withdraw(edge, ticket_ids))

    def credit(self, tickets, scheduler="s", *, max_tokens=0, rate=0.0, room=None, urgent=0, once=False, model="m"):
        """Return the ids that are offered for it, in order."""
        given = Credit(tickets, max_tokens, rate, room, urgent)
        return offered(self.hear(self.book.on_credit(scheduler, model, given, self.now, return_unused=once)))

    def place(self, ticket_id, scheduler="s", lease_id="lease", attempt=1):
        lease = Lease(lease_id=lease_id, ticket_id=ticket_id, worker_id="w", attempt=attempt)
        return self.hear(self.book.on_place(scheduler, lease, self.now))

    def decline(self, ticket_id, reason="NO_CAPACITY", scheduler="s"):
        return self.hear(self.book.on_decline(scheduler, ticket_id, reason, self.now))

    def wait(self, seconds):
        self.now += seconds
        return self.hear(self.book.tick(self.now))

    def heads(self):
        return list(self.book.model_queues.head_updates())


def offered(effects):
    return [each.ticket.ticket_id for each in effects if isinstance(each, out.Offer)]


def leased(effects):
    return [each.lease.lease_id for each in effects if isinstance(each, out.Leased)]


def sheds(effects):
    return {each.ticket_id: each.error.reason for each in effects if isinstance(each, out.Shed)}


def recalls(effects):
    return [(each.scheduler, each.ticket_ids) for each in effects if isinstance(each, out.OfferWithdrawn)]


def only(kind, effects):
    found = [each for each in effects if isinstance(each, kind)]
    assert len(found) == 1, effects
    return found[0]
