"""Who is let into a shard, and why others are not. Knows no stream and moves nothing."""

from collections.abc import Iterator, Sequence
from functools import partial
from math import ceil

from penstock.chassis.errors import PenstockError
from penstock.queue.admission.limits import QueueLimits, TtftTargets
from penstock.queue.errors import (
    AdmissionRejected,
    DeadlinePassed,
    DeadlineUnreachable,
    ModelUnknown,
    NoWorker,
    QueueFull,
    QueueTokensFull,
    RejectionWindow,
    WouldDelayOthers,
)
from penstock.queue.models.availability import Availability, ModelAvailability
from penstock.queue.models.model_queue import ModelQueues, clamp_retry_after
from penstock.queue.prediction.commitments import BlockedRange, Commitment
from penstock.queue.prediction.forecast import Prediction
from penstock.queue.prediction.prefill_backlog import PromptDelay
from penstock.queue.ticket import QueuedTicket

MIN_TTFT_SHARE_FOR_WINDOWS = (
    0.5  # of what it is promised: a ticket that is predicted to take less shuts no door behind it
)
DELAY_WINDOW_PROMPT_FACTORS = (
    1,
    2,
    4,
)  # times a prompt that is refused for others' sake, for which that is worked out as well
WINDOW_PROMPT_FACTORS = 0.0, 0.5, 1.0, 2.0, 4.0  # of a prompt; for these it is worked out for how long there is no room


class Admission:
    def __init__(
        self, limits: QueueLimits, availability: ModelAvailability, ttft_targets: TtftTargets, model_queues: ModelQueues
    ) -> None:
        self._limits = limits
        self._availability = availability
        self._ttft_targets = ttft_targets
        self._model_queues = model_queues

    def rejection(self, ticket: QueuedTicket, now: float) -> PenstockError | None:
        """Return why a ticket is refused however empty the shard is; notes a model that is to be waited for."""
        if 0 < ticket.deadline <= now:
            return DeadlinePassed()
        match self._availability.availability_of(ticket.model, now):
            case Availability.UNKNOWN:
                return ModelUnknown(ticket.model)
            case Availability.UNAVAILABLE:
                return NoWorker.at_present(ticket.model, self._availability.timeout)
            case _:
                return None

    def check_slo(self, ticket: QueuedTicket, prediction: Prediction, now: float) -> PenstockError | None:
        """Return why it is of no use to let a ticket wait; where too little is known, it may.

        Sets by when it is to have its lease.
        """
        limit = self._ttft_targets.ttft_limit(ticket, now)
        if limit is None:
            return None
        ticket.lease_deadline = now + limit - prediction.after_lease
        ticket.ttft_limit, ticket.predicted_ttft = limit, prediction.ttft or 0.0
        excess = self._lateness(ticket.model, prediction, limit)
        if ticket.lease_deadline > now and (ticket.is_resumed or excess <= 0):
            if ticket.is_resumed or self._keeps_commitments(ticket, prediction, now):
                return None
            others = WouldDelayOthers(clamp_retry_after(prediction.min_ttft))
            others.rejection_windows = partial(self._delay_windows, ticket, now)
            return others
        refusal = DeadlineUnreachable(prediction.min_ttft, limit, clamp_retry_after(excess))
        if not ticket.is_resumed:
            refusal.rejection_windows = partial(self._lateness_windows, ticket, limit, now)
        return refusal

    def on_admitted(self, ticket: QueuedTicket, prediction: Prediction, now: float) -> None:
        """Note what a ticket is owed from now on, and who waits longer for it."""
        owed = self._model_queues[ticket.model].forecast.commitments
        if prediction.delays:
            owed.record_breaches(_breaches(ticket, prediction.delays))
        if prediction.prefill_delay:
            owed.delay_overtaken(ticket.prompt_tokens, prediction.prefill_delay, now + (prediction.wait or 0.0), now)
        if ticket.ttft_limit and prediction.undisturbed_ttft:
            due = now + ticket.ttft_limit * self._usable_share(ticket.model, prediction)
            expected = now + prediction.undisturbed_ttft
            owed.commit(Commitment(ticket.commitment_rank, ticket.prompt_tokens, expected, due))

    def _keeps_commitments(self, ticket: QueuedTicket, prediction: Prediction, now: float) -> bool:
        owed = self._model_queues[ticket.model].forecast.commitments
        if not prediction.prefill_delay:
            return True
        if prediction.delays is not None:
            return owed.breach_budget >= _breaches(ticket, prediction.delays)
        begins = now + (prediction.wait or 0.0)
        return owed.allows(ticket.commitment_rank, ticket.prompt_tokens, prediction.prefill_delay, begins)

    def _lateness(self, model: str, prediction: Prediction, limit: float) -> float:
        """Return the s by which a first token would be too late to promise it within `limit`."""
        return prediction.min_ttft - limit * self._usable_share(model, prediction)

    def _usable_share(self, model: str, prediction: Prediction) -> float:
        """Return the share of a promise up to which it may be predicted, as predictions may be off."""
        return self._ttft_targets.headroom or self._model_queues[model].forecast.usable_share(prediction)

    def rejection_windows(self, ticket: QueuedTicket, now: float) -> Iterator[RejectionWindow]:
        """Yield for how long others like a ticket that was let in a moment ago would be refused behind it."""
        if not ticket.is_resumed and ticket.predicted_ttft > MIN_TTFT_SHARE_FOR_WINDOWS * ticket.ttft_limit > 0:
            behind = ticket.copy_unplaced()
            behind.enqueued = now
            yield from self._lateness_windows(behind, ticket.ttft_limit, now)

    def _lateness_windows(self, ticket: QueuedTicket, limit: float, now: float) -> Iterator[RejectionWindow]:
        """Yield for how long others would be refused, the smallest first, and the ticket itself.

        What is before a ticket is served no faster than time passes, so that is their excess; but where predictions
        are corrected upwards, they fall faster than that.
        """
        pace = max(1.0, self._model_queues[ticket.model].forecast.correction)
        by_deadline, longest = self._ttft_targets.is_limited_by_deadline(ticket, now), 0.0
        for like in self._size_variants(ticket):
            lasts = self._lateness(ticket.model, self._model_queues.predict(like, now), limit) / pace
            if lasts > longest:
                longest = lasts
                yield RejectionWindow(lasts, like.prompt_tokens, like.max_output_tokens, by_deadline)

    def _delay_windows(self, ticket: QueuedTicket, now: float) -> Iterator[RejectionWindow]:
        """Yield for how long prompts up to some lengths would be refused, as they would pass others."""
        like, policy = ticket.copy_unplaced(), self._model_queues[ticket.model].policy
        for share in DELAY_WINDOW_PROMPT_FACTORS:
            like.prompt_tokens = share * ticket.prompt_tokens
            like.is_express = like.is_express and policy.is_express(like)
            if block := self._blocked_range(like, self._model_queues.predict(like, now), now):
                yield RejectionWindow(block.duration, block.min_prompt_tokens, 1, max_prompt_tokens=like.prompt_tokens)

    def _blocked_range(self, ticket: QueuedTicket, prediction: Prediction, now: float) -> BlockedRange | None:
        """Return the sizes and the time for which commitments block such a ticket; None if they do not."""
        owed = self._model_queues[ticket.model].forecast.commitments
        if prediction.delays is not None:
            breached = [each for each in prediction.delays if each.is_breach(ticket.commitment_rank)]
            ranges = [BlockedRange(*each.blocked_range(ticket.prompt_tokens)) for each in breached]
            return owed.combined_block(ticket.prompt_tokens, ranges)
        if not prediction.prefill_delay:
            return None
        begins = now + (prediction.wait or 0.0)
        return owed.blocked_range(ticket.commitment_rank, ticket.prompt_tokens, prediction.prefill_delay, begins)

    def _size_variants(self, ticket: QueuedTicket) -> Iterator[QueuedTicket]:
        """Yield tickets like this one, smaller and larger, and itself at last; the others are one that changes."""
        like, order = ticket.copy_unplaced(), self._model_queues[ticket.model].policy
        like.max_output_tokens = like.predicted_output = 1
        like.is_express = True
        for share in WINDOW_PROMPT_FACTORS:
            like.prompt_tokens = max(1, ceil(share * ticket.prompt_tokens))
            like.is_express = like.is_express and order.is_express(like)
            yield like
        yield ticket

    def expiration_error(self, ticket: QueuedTicket, now: float) -> PenstockError:
        """Return why a ticket goes that is past its due time."""
        if self._ttft_targets.is_limited_by_deadline(ticket, ticket.arrived):
            return DeadlinePassed()
        return DeadlineUnreachable.while_waiting(now - ticket.arrived, self._model_queues.retry_after(ticket, now))

    def has_room(self, ticket: QueuedTicket) -> bool:
        """Resumed work always has: its place was its own, and half of its answer is out already."""
        return ticket.is_resumed or self._limits.fits(self._model_queues.waiting, ticket.tokens)

    def can_make_room(self, ticket: QueuedTicket) -> bool:
        """Tell whether it would have room if all that may make way for it did."""
        excess = self._limits.excess(self._model_queues.waiting, ticket.tokens)
        lower = self._model_queues.evictable(ticket.priority)
        return lower.tickets >= excess.tickets and lower.tokens >= excess.tokens

    def queue_full(self, ticket: QueuedTicket, now: float) -> PenstockError:
        """Return why there is no room for a ticket."""
        waiting, wait = self._model_queues.waiting, self._model_queues.retry_after(ticket, now)
        if self._limits.excess(waiting, 0).tickets:
            refusal: AdmissionRejected = QueueFull(waiting.tickets, wait)
        else:
            refusal = QueueTokensFull(ticket.tokens, waiting.tokens, self._limits.max_tokens, wait)
        until_a_place_is_free = RejectionWindow(
            wait / (waiting.tickets + 1), ticket.prompt_tokens, ticket.max_output_tokens
        )
        refusal.rejection_windows = lambda: (until_a_place_is_free,)
        return refusal


def _breaches(ticket: QueuedTicket, delays: Sequence[PromptDelay]) -> int:
    """Return how many first tokens the ticket would make late."""
    return sum([each.is_breach(ticket.commitment_rank) for each in delays])
