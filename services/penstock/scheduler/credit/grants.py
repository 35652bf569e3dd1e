"""What a model's workers have room for, as credit for the shards that may use it."""

from penstock.scheduler.credit.credit_book import CreditBook, CreditGrant, FreeCapacity
from penstock.scheduler.effects import GrantCredit
from penstock.scheduler.fleet.pool import Pool

NOTHING_FITS_TOKENS = 1  # token; the smallest ticket has two
NO_FREE_CAPACITY = FreeCapacity(0, 0, NOTHING_FITS_TOKENS)


def credit_grants_for(model: str, pool: Pool | None, book: CreditBook) -> list[GrantCredit]:
    """Give what the book grants of the room there is; without a pool there is none."""
    space, rate = NO_FREE_CAPACITY, 0.0
    if pool is not None:
        largest, totals = pool.max_ticket_tokens, pool.totals
        rate = totals.tokens_per_second
        space = FreeCapacity(
            totals.available_leases,
            totals.free_tokens,
            largest or NOTHING_FITS_TOKENS,
            totals.open_workers,
            pool.max_supported_tokens,
            totals.slots,
        )
    return [_grant_effect(grant, model, space.max_ticket_tokens, rate) for grant in book.grants(space)]


def _grant_effect(grant: CreditGrant, model: str, max_ticket_tokens: int, rate: float) -> GrantCredit:
    return GrantCredit(
        queue=grant.queue,
        model=model,
        tickets=grant.tickets,
        max_ticket_tokens=0 if grant.is_unbounded else max_ticket_tokens,
        tokens_per_second=rate,
        total_tokens=grant.tokens,
        return_unused=grant.return_unused,
        express_tickets=grant.express_tickets,
    )
