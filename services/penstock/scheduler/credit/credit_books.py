"""The credit books of all models, and the credit that follows from the free capacity of their workers."""

from collections.abc import Collection

from penstock.scheduler.credit.credit_book import CreditBook
from penstock.scheduler.credit.grants import CreditGrant, FreeCapacity, plan_grants
from penstock.scheduler.effects import Effect, GrantCredit
from penstock.scheduler.fleet.fleet import Fleet
from penstock.scheduler.fleet.pool import Pool

# Books, beyond which the oldest one of a model without workers is forgotten: shards may name any model.
MAX_BOOKS = 1_024
NOTHING_FITS_TOKENS = 1  # size limit that no ticket meets: the smallest ticket has two tokens
NO_FREE_CAPACITY = FreeCapacity(0, 0, NOTHING_FITS_TOKENS)


class CreditBooks(dict[str, CreditBook]):
    """Credit books by model. A book is created when its model is first used."""

    def __init__(self, queues: Collection[str], fleet: Fleet, express_slot_share: float) -> None:
        super().__init__()
        self.is_closed = False  # no more credit is granted
        self._queues = queues  # shards that are connected
        self._fleet = fleet
        self._express_slot_share = express_slot_share

    def __missing__(self, model: str) -> CreditBook:
        if len(self) >= MAX_BOOKS and (
            unserved := next((each for each in self if each not in self._fleet.pools), None)
        ):
            del self[unserved]
        book = self[model] = CreditBook(self._queues, self._express_slot_share)
        return book

    def on_queue_connected(self, queue: str) -> None:
        for book in self.values():
            book.on_queue_connected(queue)

    def on_queue_disconnected(self, queue: str) -> None:
        for book in self.values():
            book.on_queue_disconnected(queue)

    def on_capacity_freed(self, *models: str) -> list[Effect]:
        for model in models:
            self[model].on_capacity_changed()
        return self.grants(*models)

    def tick(self) -> list[Effect]:
        """Return the credit for models with waiting tickets."""
        effects: list[Effect] = []
        for model, book in self.items():
            if book.has_waiting:
                book.tick()
                effects += self.grants(model)
        return effects

    def grants(self, *models: str) -> list[Effect]:
        """Return the credit that follows from the present capacity of the workers of `models`."""
        if self.is_closed:
            return []
        return [each for model in models for each in self._grants_of(model, self._fleet.pools.get(model))]

    def _grants_of(self, model: str, pool: Pool | None) -> list[GrantCredit]:
        free, rate = NO_FREE_CAPACITY, 0.0
        if pool is not None:
            largest, totals = pool.max_ticket_tokens, pool.totals
            headroom = self[model].headroom.slots_of_each(totals.slots, len(pool))
            pool.keep_headroom(headroom)
            rate = totals.tokens_per_second
            free = FreeCapacity(
                totals.available_leases,
                totals.free_tokens,
                largest or NOTHING_FITS_TOKENS,
                totals.open_workers,
                pool.max_supported_tokens,
                totals.slots,
                pool.batch_leases,
                headroom * len(pool),
            )
        return [_grant_effect(grant, model, free.max_ticket_tokens, rate) for grant in plan_grants(self[model], free)]


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
