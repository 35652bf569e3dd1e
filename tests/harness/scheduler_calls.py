"""Calls of a dispatcher, and readers of its effects."""

from dispatch_mesh import MODEL, START_UNIX_S, profile_of, ticket_of
from penstock.mesh.v1.queue_pb2 import Head
from penstock.mesh.v1.scheduler_pb2 import Progress, ServedLease
from penstock.scheduler.credit.grants import FreeCapacity, plan_grants
from penstock.scheduler.effects import GrantCredit, SendPoolStats, SendServiceReport


def attach(scheduler, worker="w", *, stream="", **profile):
    return scheduler.on_worker_attached(stream or worker, worker, f"{worker}:1", profile_of(**profile))


def offer(scheduler, name="t", *, queue="q", now=START_UNIX_S, **ticket):
    return scheduler.on_offer(queue, ticket_of(name, **ticket), now)


def only(kind, effects):
    found = [effect for effect in effects if isinstance(effect, kind)]
    assert len(found) == 1, found
    return found[0]


def held_credit(scheduler, queue="q"):
    return scheduler.credit_books[MODEL].shards[queue].held_tickets


def free_capacity(scheduler):
    pool = scheduler.fleet.pools[MODEL]
    return pool.totals.available_leases, pool.max_ticket_tokens


def service_reports(effects, kind=SendServiceReport):
    return [
        (effect.queue, each.ticket_id, each.attempt, each.prompt_tokens, each.output_tokens, each.ended)
        for effect in effects
        if isinstance(effect, kind)
        for each in effect.tickets
    ]


def without_reports(effects):
    """Return the effects without pool statistics and service reports."""
    return [effect for effect in effects if not isinstance(effect, SendPoolStats | SendServiceReport)]


def credit_grants(effects):
    return [
        (effect.queue, effect.tickets, effect.return_unused) for effect in effects if isinstance(effect, GrantCredit)
    ]


def served(lease_id, prompt_tokens, output_tokens, number=0):
    return ServedLease(lease_id=lease_id, prompt_tokens=prompt_tokens, output_tokens=output_tokens, number=number)


def progress(*leases, steps=0, **output_by_number):
    """Return a report of leases in full, and of output tokens by the number in the name of each argument: n7=20."""
    numbers = [int(name.removeprefix("n")) for name in output_by_number]
    return Progress(leases=leases, steps=steps, lease_numbers=numbers, output_tokens=output_by_number.values())


def pool_stats(effects):
    return [effect.stats for effect in effects if isinstance(effect, SendPoolStats)]


NOW = 1_000.0  # s
LARGE_TOKENS, SMALL_TOKENS = 1_000, 100  # tokens
MANY_TOKENS = 1_000_000  # tokens; more than these tests grant


def head(waiting=1, *, priority=2, at=100, virtual=0.0, tokens=10, lifted=0.0, resumes=False):
    """Return a head of `waiting` tickets with `tokens` each, of which the best was enqueued `at`, before NOW."""
    return Head(
        model=MODEL,
        waiting=waiting,
        priority=priority,
        age_nanos=round((NOW - at) * 1e9),
        arrival_number=1 + at,
        virtual_tokens=virtual,
        waiting_tokens=waiting * tokens,
        lifted_tokens=lifted,
        resumes=resumes,
    )


def grants(book, tickets, largest, tokens=MANY_TOKENS):
    """Return the grants without their tokens."""
    return [grant._replace(tokens=0) for grant in plan_grants(book, FreeCapacity(tickets, tokens, largest))]


def offer_one(book, queue, then):
    """Let a shard use one ticket of credit and send its new head, as after every offer."""
    book.on_offer(queue, 10)
    book.on_head(queue, then, NOW)
