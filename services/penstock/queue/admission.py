"""Who is let into a shard, and why others are not. Knows no stream and moves nothing."""

from collections.abc import Iterator
from functools import partial
from math import ceil

from penstock.chassis.errors import PenstockError
from penstock.queue.bounds import Bounds
from penstock.queue.errors import (
    AtTheDoor,
    Closed,
    DeadlinePassed,
    ModelUnknown,
    NoWorker,
    OthersTooLate,
    QueueFull,
    QueueTokensFull,
    TooLate,
)
from penstock.queue.forecast import Prediction
from penstock.queue.owed import First
from penstock.queue.presence import Presence, Verdict
from penstock.queue.promises import Promises
from penstock.queue.shelves import Shelves, retry_within_bounds
from penstock.queue.waiting import WaitingTicket

NEARLY = 0.5  # of what it is promised: a ticket that is predicted to take less shuts no door behind it
LONGER = 1, 2, 4  # times a prompt that is refused for others' sake, for which that is worked out as well
SIZES = 0.0, 0.5, 1.0, 2.0, 4.0  # of a prompt; for these it is worked out for how long there is no room


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
        excess = self._excess(ticket.model, prediction, limit)
        if ticket.due > now and (ticket.resumes or excess <= 0):
            if ticket.resumes or self._keeps_promises(ticket, prediction, now):
                return None
            others = OthersTooLate(retry_within_bounds(prediction.least))
            others.closed = partial(self._closed_for_others, ticket, now)
            return others
        refusal = TooLate(prediction.least, limit, retry_within_bounds(excess))
        if not ticket.resumes:
            refusal.closed = partial(self._closed, ticket, limit, now)
        return refusal

    def let_in(self, ticket: WaitingTicket, prediction: Prediction, now: float) -> None:
        """Note what a ticket is owed from now on, and who waits longer for it."""
        owed = self._shelves[ticket.model].forecast.owed
        if prediction.takes:
            owed.let_in(ticket.prompt_tokens, prediction.takes, now + (prediction.wait or 0.0), now)
        if ticket.promised and prediction.undisturbed:
            due = now + ticket.promised * self._usable(ticket.model, prediction)
            owed.owe(First(_rank(ticket), ticket.prompt_tokens, now + prediction.undisturbed, due))

    def _keeps_promises(self, ticket: WaitingTicket, prediction: Prediction, now: float) -> bool:
        owed = self._shelves[ticket.model].forecast.owed
        if not prediction.takes:
            return True
        begins = now + (prediction.wait or 0.0)
        return owed.allows(_rank(ticket), ticket.prompt_tokens, prediction.takes, begins)

    def _excess(self, model: str, prediction: Prediction, limit: float) -> float:
        """Return the s by which a first token would be too late to promise it within `limit`."""
        return prediction.least - limit * self._usable(model, prediction)

    def _usable(self, model: str, prediction: Prediction) -> float:
        """Return the share of a promise up to which it may be predicted, as predictions may be off."""
        return self._promises.headroom or self._shelves[model].forecast.usable(prediction)

    def closed_behind(self, ticket: WaitingTicket, now: float) -> Iterator[Closed]:
        """Yield for how long others like a ticket that was let in a moment ago would be refused behind it."""
        if not ticket.resumes and ticket.predicted_first > NEARLY * ticket.promised > 0:
            behind = ticket.unplaced()
            behind.enqueued = now
            yield from self._closed(behind, ticket.promised, now)

    def _closed(self, ticket: WaitingTicket, limit: float, now: float) -> Iterator[Closed]:
        """Yield for how long others would be refused, the smallest first, and the ticket itself.

        What is before a ticket is served no faster than time passes, so that is their excess; but where predictions
        are corrected upwards, they fall faster than that.
        """
        pace = max(1.0, self._shelves[ticket.model].forecast.correction)
        by_deadline, longest = self._promises.is_by_deadline(ticket, now), 0.0
        for like in self._sizes(ticket):
            lasts = self._excess(ticket.model, self._shelves.predict(like, now), limit) / pace
            if lasts > longest:
                longest = lasts
                yield Closed(lasts, like.prompt_tokens, like.max_output_tokens, by_deadline)

    def _closed_for_others(self, ticket: WaitingTicket, now: float) -> Iterator[Closed]:
        """Yield for how long prompts up to some lengths would be refused, as they would pass others."""
        like, shelf = ticket.unplaced(), self._shelves[ticket.model]
        for share in LONGER:
            like.prompt_tokens = share * ticket.prompt_tokens
            like.is_urgent = like.is_urgent and shelf.order.is_urgent(like)
            found = self._shelves.predict(like, now)
            begins = now + (found.wait or 0.0)
            if found.takes and (
                block := shelf.forecast.owed.block(_rank(like), like.prompt_tokens, found.takes, begins)
            ):
                yield Closed(block.lasts, block.least, 1, most=like.prompt_tokens)

    def _sizes(self, ticket: WaitingTicket) -> Iterator[WaitingTicket]:
        """Yield tickets like this one, smaller and larger, and itself at last; the others are one that changes."""
        like, order = ticket.unplaced(), self._shelves[ticket.model].order
        like.max_output_tokens = like.predicted_output = 1
        like.is_urgent = True
        for share in SIZES:
            like.prompt_tokens = max(1, ceil(share * ticket.prompt_tokens))
            like.is_urgent = like.is_urgent and order.is_urgent(like)
            yield like
        yield ticket

    def expiry(self, ticket: WaitingTicket, now: float) -> PenstockError:
        """Return why a ticket goes that is past its due time."""
        if self._promises.is_by_deadline(ticket, ticket.arrived):
            return DeadlinePassed()
        return TooLate.while_waiting(now - ticket.arrived, self._shelves.retry_after(ticket, now))

    def has_room(self, ticket: WaitingTicket) -> bool:
        """Resumed work always has: its place was its own, and half of its answer is out already."""
        return ticket.resumes or self._bounds.fits(self._shelves.waiting, ticket.tokens)

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
        until_a_place_is_free = Closed(wait / (waiting.tickets + 1), ticket.prompt_tokens, ticket.max_output_tokens)
        refusal.closed = lambda: (until_a_place_is_free,)
        return refusal


def _rank(ticket: WaitingTicket) -> int:
    """Rank it for who has to bear whom: nobody inside its share is kept out by those who exceed theirs."""
    return 2 * ticket.priority - ticket.is_urgent
