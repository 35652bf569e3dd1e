"""Tickets and a ticket book for tests of the queue."""

from dataclasses import dataclass, field

from penstock.mesh.v1.ticket_pb2 import CatalogEntry, Lease
from penstock.queue import effects as out
from penstock.queue.admission.admission import QueueLimits, TtftTargets
from penstock.queue.models.availability import ModelAvailability
from penstock.queue.policies.factory import PolicyConfig
from penstock.queue.schedulers import Credit
from penstock.queue.ticket import QueuedTicket
from penstock.queue.tickets.book import DEFAULT_POLICY, TicketBook
from penstock.queue.tickets.recent_leases import RecentLeases

INTERACTIVE, STANDARD, BATCH = 1, 2, 3
WARM_UP_S, MODEL_TIMEOUT_S, LEASE_MEMORY_S = 5.0, 10.0, 10.0
START_UNIX_S = 1_000.0  # s; Unix time of the book's start


def ticket(
    ticket_id, *, edge="e", tokens=100, priority=STANDARD, enqueued=START_UNIX_S, attempt=1, deadline=0.0, **more
):
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


def entry(model="m", workers=1, digest=""):
    return CatalogEntry(model=model, card_digest=digest, worker_address="w:1", workers_hint=workers)


@dataclass
class ShardDriver:
    """A ticket book with edges `e` and `f`, driven by calls that resemble frames. It records all effects."""

    max_depth: int = 1_000
    max_tokens: int = 1_000_000
    now: float = START_UNIX_S
    policy: PolicyConfig = DEFAULT_POLICY
    ttft_targets: TtftTargets = field(default_factory=TtftTargets)
    effects: list = field(default_factory=list)

    def __post_init__(self):
        self.book = TicketBook(
            limits=QueueLimits(self.max_depth, self.max_tokens),
            availability=ModelAvailability(timeout=MODEL_TIMEOUT_S, warm_up=WARM_UP_S, started_at=START_UNIX_S),
            recent_leases=RecentLeases(LEASE_MEMORY_S),
            ttft_targets=self.ttft_targets,
            new_policy=self.policy,
        )
        for edge in ("e", "f"):
            self.book.on_edge_connected(edge)

    def record(self, effects):
        self.effects += effects
        return effects

    def connect(self, scheduler="s", models=("m",)):
        self.record(self.book.on_scheduler_connected(scheduler, self.now))
        self.serve(scheduler, models)

    def serve(self, scheduler, models):
        self.record(self.book.on_catalog(scheduler, [entry(model) for model in models], self.now))

    def disconnect(self, scheduler):
        return self.record(self.book.on_scheduler_disconnected(scheduler, self.now))

    def enqueue(self, ticket_id, **fields):
        return self.record(self.book.enqueue(ticket(ticket_id, **fields), self.now))

    def withdraw(self, *ticket_ids, edge="e"):
        return self.record(self.book.withdraw(edge, ticket_ids))

    def credit(
        self,
        tickets,
        scheduler="s",
        *,
        max_tokens=0,
        rate=0.0,
        total_tokens=None,
        express=0,
        return_unused=False,
        model="m",
    ):
        """Give credit, and return the ids of the offered tickets in order."""
        given = Credit(tickets, max_tokens, rate, total_tokens, express)
        return offered(self.record(self.book.on_credit(scheduler, model, given, self.now, return_unused=return_unused)))

    def place(self, ticket_id, scheduler="s", lease_id="lease", attempt=1):
        lease = Lease(lease_id=lease_id, ticket_id=ticket_id, worker_id="w", attempt=attempt)
        return self.record(self.book.on_place(scheduler, lease, self.now))

    def decline(self, ticket_id, reason="NO_CAPACITY", scheduler="s"):
        return self.record(self.book.on_decline(scheduler, ticket_id, reason, self.now))

    def pass_time(self, seconds):
        self.now += seconds
        return self.record(self.book.tick(self.now))

    def heads(self):
        return list(self.book.model_queues.head_updates())


def offered(effects):
    return [each.ticket.ticket_id for each in effects if isinstance(each, out.Offer)]


def leased(effects):
    return [each.lease.lease_id for each in effects if isinstance(each, out.Leased)]


def sheds(effects):
    return {each.ticket_id: each.error.reason for each in effects if isinstance(each, out.Shed)}


def withdrawn_offers(effects):
    return [(each.scheduler, each.ticket_ids) for each in effects if isinstance(each, out.OfferWithdrawn)]


def only(kind, effects):
    found = [each for each in effects if isinstance(each, kind)]
    assert len(found) == 1, effects
    return found[0]
