"""What a model's workers have room for, as credit for the shards that may use it."""

from penstock.scheduler.credit import CreditBook, Grant, Space
from penstock.scheduler.effects import GiveCredit
from penstock.scheduler.pool import Pool

NOTHING_FITS = 1  # token; the smallest ticket has two
FULL = Space(0, 0, NOTHING_FITS)


def credit_for(model: str, pool: Pool | None, book: CreditBook) -> list[GiveCredit]:
    """Give what the book grants of the room there is; without a pool there is none."""
    space, rate = FULL, 0.0
    if pool is not None:
        largest, totals = pool.largest, pool.totals
        rate = totals.tokens_per_second
        space = Space(totals.room, totals.tokens, largest or NOTHING_FITS, totals.is_open, pool.ever, totals.slots)
    return [_give(grant, model, space.largest, rate) for grant in book.grants(space)]


def _give(grant: Grant, model: str, largest: int, rate: float) -> GiveCredit:
    return GiveCredit(
        queue=grant.queue,
        model=model,
        tickets=grant.tickets,
        max_tokens=0 if grant.is_unbounded else largest,
        tokens_per_second=rate,
        total_tokens=grant.tokens,
        once=grant.once,
        urgent_tickets=grant.urgent,
    )
