"""A dispatcher driven by plain calls, and what is read of its effects."""

from dispatch_mesh import MODEL, START_UNIX_S, profile_of, ticket_of
from penstock.mesh.v1.scheduler_pb2 import ServedLease
from penstock.scheduler.effects import GrantCredit, SendPoolStats, SendServiceReport


def attach(scheduler, worker="w", *, stream="", **profile):
    return scheduler.on_worker_attached(stream or worker, worker, f"{worker}:1", profile_of(**profile))


def offer(scheduler, name="t", *, queue="q", now=START_UNIX_S, **ticket):
    return scheduler.offer(queue, ticket_of(name, **ticket), now)


def only(kind, effects):
    found = [effect for effect in effects if isinstance(effect, kind)]
    assert len(found) == 1, found
    return found[0]


def held_credit(scheduler, queue="q"):
    return scheduler.credits[MODEL].shards[queue].held


def free_capacity(scheduler):
    pool = scheduler.fleet.pools[MODEL]
    return pool.totals.room, pool.largest


def service_reports(effects, kind=SendServiceReport):
    return [
        (effect.queue, each.ticket_id, each.attempt, each.prompt_tokens, each.output_tokens, each.ended)
        for effect in effects
        if isinstance(effect, kind)
        for each in effect.tickets
    ]


def without_reports(effects):
    """All but what is told of pace and service."""
    return [effect for effect in effects if not isinstance(effect, SendPoolStats | SendServiceReport)]


def credit_grants(effects):
    return [
        (effect.queue, effect.tickets, effect.return_unused) for effect in effects if isinstance(effect, GrantCredit)
    ]


def served(lease_id, prompt_tokens, output_tokens):
    return ServedLease(lease_id=lease_id, prompt_tokens=prompt_tokens, output_tokens=output_tokens)


def pool_stats(effects):
    return [effect.stats for effect in effects if isinstance(effect, SendPoolStats)]
