"""Who is let into a shard, and why others are not. Knows no stream and moves nothing."""

from penstock.chassis.errors import PenstockError
from penstock.queue.bounds import NO_EXCESS, Bounds
from penstock.queue.errors import (
    AtTheDoor,
    Closed,
    DeadlinePassed,
    ModelUnknown,
    NoWorker,
    QueueFull,
    QueueTokensFull,
    TooLate,
)
from penstock.queue.forecast import Prediction
from penstock.queue.presence import Presence, Verdict
from penstock.queue.promises import Promises
from penstock.queue.shelves import Shelves, retry_within_bounds
from penstock.queue.waiting import WaitingTicket


class Admission:
    def __init__(self, bounds: Bounds, presence: Presence, promises: Promises, shelves: Shelves) -> None:
        self._bounds = bounds
        self._presence = presence
        self._promises = promises
        self._shelves = shelves

    def refusal(self, ticket: WaitingTicket, now: float) -> PenstockError | None:
        """Return why a ticket is refused however empty the shard is; notes a model that is to be waited for."""
        if 0 < ticket.deadline <= now:
            return DeadlinePassed()
        match self._presence.verdict(ticket.model, now):
            case Verdict.UNKNOWN:
                return ModelUnknown(ticket.model)
            case Verdict.GONE:
                return NoWorker.at_present(ticket.model, self._presence.patience)
            case _:
                return None

    def lateness(self, ticket: WaitingTicket, prediction: Prediction, now: float) -> PenstockError | None:
        """Return why it is of no use to let a ticket wait; where too little is known, it may.

        Sets by when it is to have its lease.
        """
        limit = self._promises.limit(ticket, now)
        if limit is None:
            return None
        ticket.due = now + limit - prediction.after_lease
        ticket.promised, ticket.predicted_first = limit, prediction.first_token or 0.0
        least = prediction.after_lease if prediction.first_token is None else prediction.first_token
        usable = limit * (self._promises.headroom or self._shelves[ticket.model].forecast.usable(prediction))
        if ticket.due > now and (ticket.resumes or least <= usable):
            return None
        refusal = TooLate(least, limit, retry_within_bounds(least - usable))
        lasts = max(0.0, least - usable) / max(1.0, self._shelves[ticket.model].forecast.correction)
        refusal.closed = Closed(lasts, by_deadline=self._promises.is_by_deadline(ticket, now))
        return refusal

    def expiry(self, ticket: WaitingTicket, now: float) -> PenstockError:
        """Return why a ticket goes that is past its due time."""
        if self._promises.is_by_deadline(ticket, ticket.arrived):
            return DeadlinePassed()
        return TooLate.while_waiting(now - ticket.arrived, self._shelves.retry_after(ticket, now))

    def has_room(self, ticket: WaitingTicket) -> bool:
        """Resumed work always has: its place was its own, and half of its answer is out already."""
        return ticket.resumes or self._bounds.excess(self._shelves.waiting, ticket.tokens) == NO_EXCESS

    def can_have_room(self, ticket: WaitingTicket) -> bool:
        """Tell whether it would have room if all that may make way for it did."""
        excess = self._bounds.excess(self._shelves.waiting, ticket.tokens)
        lower = self._shelves.evictable(ticket.priority)
        return lower.tickets >= excess.tickets and lower.tokens >= excess.tokens

    def full(self, ticket: WaitingTicket, now: float) -> PenstockError:
        """Return why there is no room for a ticket."""
        waiting, wait = self._shelves.waiting, self._shelves.retry_after(ticket, now)
        if self._bounds.excess(waiting, 0).tickets:
            refusal: AtTheDoor = QueueFull(waiting.tickets, wait)
        else:
            refusal = QueueTokensFull(ticket.tokens, waiting.tokens, self._bounds.max_tokens, wait)
        refusal.closed = Closed(wait / (waiting.tickets + 1))  # until one place comes free
        return refusal
