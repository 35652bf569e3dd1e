"""Admission: a request is admitted if its predicted TTFT meets its deadline and its class's target. Has no clock."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from types import MappingProxyType
from typing import Final

from penstock.chassis.errors import PenstockError
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
from penstock.queue.policies.policy import TicketTotals
from penstock.queue.prediction.commitments import BlockedRange, Commitment
from penstock.queue.prediction.forecast import Prediction
from penstock.queue.ticket import QueuedTicket

MIN_GUEST_LIMIT_S: Final = 1e-3  # a guest whose time is spent is predicted to be late
GUEST_TARGET_S: Final = 10.0  # of guests whose class has no TTFT target: they must not wait long in any class


@dataclass(frozen=True, slots=True)
class TtftTargets:
    """TTFT targets of the priority classes."""

    by_class: Mapping[int, float] = field(
        default_factory=lambda: MappingProxyType({})
    )  # s; classes without one are absent
    headroom: float = 0.0  # share of the limit that a prediction may take; 0: learned from prediction errors
    guest_share: float = 0.5  # share of a target that a guest may take, the time outside of this region included

    def ttft_limit(self, ticket: QueuedTicket, now: float) -> float | None:
        """Return the s that a ticket that arrives now has for its first token; None if there is no limit.

        For a ticket that was admitted before, by this or another shard, only the deadline counts: a rejection would
        break the promise of the earlier admission. A guest has a share of the target, less its time elsewhere, so that
        guests fill free capacity and are rejected before own tickets.
        """
        limits = [ticket.deadline - now] if ticket.deadline else []
        target = self.by_class.get(ticket.priority, 0.0)
        if ticket.is_resumed or ticket.is_readmitted:
            target = 0.0
        elif ticket.is_guest:
            target = max(MIN_GUEST_LIMIT_S, self.guest_share * (target or GUEST_TARGET_S) - ticket.away)
        if target:
            limits.append(target)
        return min(limits, default=None)

    def is_limited_by_deadline(self, ticket: QueuedTicket, arrived: float) -> bool:
        """Whether the deadline, and not the TTFT target, limits a ticket that arrived at `arrived`."""
        return bool(ticket.deadline) and self.ttft_limit(ticket, arrived) == ticket.deadline - arrived


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Largest number of waiting tickets and tokens."""

    max_depth: int  # tickets waiting
    max_tokens: int  # prompt + output tokens waiting

    def fits(self, waiting: TicketTotals, tokens: int) -> bool:
        """Whether one more ticket of `tokens` tokens stays within the limits."""
        return waiting.tickets < self.max_depth and waiting.tokens + tokens <= self.max_tokens

    def excess(self, waiting: TicketTotals, tokens: int) -> TicketTotals:
        """Return by how much one more ticket of `tokens` tokens would exceed the limits."""
        return TicketTotals(
            max(0, waiting.tickets + 1 - self.max_depth),
            max(0, waiting.tokens + tokens - self.max_tokens),
        )


MIN_TTFT_SHARE_FOR_WINDOWS = 0.5  # share of the TTFT limit; an admitted ticket below it has no rejection windows
DELAY_WINDOW_PROMPT_FACTORS = 1, 2, 4  # prompt lengths of the windows of WouldDelayOthers, as factors of the prompt
WINDOW_PROMPT_FACTORS = 0.0, 0.5, 1.0, 2.0, 4.0  # prompt lengths of the windows of DeadlineUnreachable, likewise


class Admission:
    """Decides admission from limits, model availability, TTFT targets and predictions. It changes no ticket's place."""

    def __init__(
        self, limits: QueueLimits, availability: ModelAvailability, ttft_targets: TtftTargets, model_queues: ModelQueues
    ) -> None:
        self._limits = limits
        self._availability = availability
        self._ttft_targets = ttft_targets
        self._model_queues = model_queues

    def rejection(self, ticket: QueuedTicket, now: float) -> PenstockError | None:
        """Return the error of a ticket that even an empty shard rejects; None otherwise. Awaits an unserved model."""
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
        """Return the error if the ticket is predicted to be late or to delay others; None if it may wait.

        Without measurements it may wait. Sets the lease deadline of the ticket.
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
            delays_others = WouldDelayOthers(clamp_retry_after(prediction.min_ttft))
            if not ticket.is_guest:  # the windows of a guest would not hold for own requests
                delays_others.rejection_windows = partial(self._delay_windows, ticket, now)
            return delays_others
        rejection = DeadlineUnreachable(prediction.min_ttft, limit, clamp_retry_after(excess))
        if not (ticket.is_resumed or ticket.is_guest):
            rejection.rejection_windows = partial(self._lateness_windows, ticket, limit, now)
        return rejection

    def on_admitted(self, ticket: QueuedTicket, prediction: Prediction, now: float) -> None:
        """Record the TTFT commitment of an admitted ticket, and the delay of the commitments that it passes."""
        commitments = self._model_queues[ticket.model].forecast.commitments
        commitments.record_breaches(self._expected_breaches(ticket, prediction, now))
        if prediction.prefill_delay:
            begins = now + (prediction.wait or 0.0)
            commitments.delay_overtaken(
                ticket.prompt_tokens, prediction.prefill_delay, begins, now, workers=prediction.workers
            )
        if ticket.ttft_limit and prediction.undisturbed_ttft:
            due = now + ticket.ttft_limit * self._usable_share(ticket.model, prediction)
            expected = now + prediction.undisturbed_ttft
            commitments.commit(Commitment(ticket.commitment_rank, ticket.prompt_tokens, expected, due))

    def _keeps_commitments(self, ticket: QueuedTicket, prediction: Prediction, now: float) -> bool:
        commitments = self._model_queues[ticket.model].forecast.commitments
        return commitments.breach_budget >= self._expected_breaches(ticket, prediction, now)

    def _expected_breaches(self, ticket: QueuedTicket, prediction: Prediction, now: float) -> float:
        """Return the expected number of first tokens that the ticket would make late."""
        if prediction.delays is not None:
            return sum([each.is_breach(ticket.commitment_rank) for each in prediction.delays])
        if not prediction.prefill_delay:
            return 0.0
        return self._model_queues[ticket.model].forecast.commitments.expected_breaches(
            ticket.commitment_rank,
            ticket.prompt_tokens,
            prediction.prefill_delay,
            now + (prediction.wait or 0.0),
            workers=prediction.workers,
        )

    def _lateness(self, model: str, prediction: Prediction, limit: float) -> float:
        """Return the s by which the prediction exceeds the usable share of `limit`; negative if it is in time."""
        return prediction.min_ttft - limit * self._usable_share(model, prediction)

    def _usable_share(self, model: str, prediction: Prediction) -> float:
        """Return the share of a limit that a prediction may take."""
        return self._ttft_targets.headroom or self._model_queues[model].forecast.usable_share(prediction)

    def rejection_windows(self, ticket: QueuedTicket, now: float) -> Iterator[RejectionWindow]:
        """Yield the windows in which tickets similar to a just admitted one would be rejected behind it."""
        if (
            not (ticket.is_resumed or ticket.is_guest)
            and ticket.predicted_ttft > MIN_TTFT_SHARE_FOR_WINDOWS * ticket.ttft_limit > 0
        ):
            behind = ticket.copy_unplaced()
            behind.enqueued = now
            yield from self._lateness_windows(behind, ticket.ttft_limit, now)

    def _lateness_windows(self, ticket: QueuedTicket, limit: float, now: float) -> Iterator[RejectionWindow]:
        """Yield the windows of similar tickets that would be late, smallest first, the ticket itself last.

        The work ahead is not served faster than time passes, so a window lasts as long as the lateness. Predictions
        that are corrected upwards fall faster, so that the window is divided by the correction.
        """
        correction = max(1.0, self._model_queues[ticket.model].forecast.correction)
        by_deadline, longest = self._ttft_targets.is_limited_by_deadline(ticket, now), 0.0
        for variant in self._size_variants(ticket):
            duration = self._lateness(ticket.model, self._model_queues.predict(variant, now), limit) / correction
            if duration > longest:
                longest = duration
                yield RejectionWindow(duration, variant.prompt_tokens, variant.max_output_tokens, by_deadline)

    def _delay_windows(self, ticket: QueuedTicket, now: float) -> Iterator[RejectionWindow]:
        """Yield the windows of prompts up to several lengths that would delay other commitments."""
        variant, policy = ticket.copy_unplaced(), self._model_queues[ticket.model].policy
        for share in DELAY_WINDOW_PROMPT_FACTORS:
            variant.prompt_tokens = share * ticket.prompt_tokens
            variant.is_express = variant.is_express and policy.is_express(variant)
            if block := self._blocked_range(variant, self._model_queues.predict(variant, now), now):
                yield RejectionWindow(
                    block.duration, block.min_prompt_tokens, 1, max_prompt_tokens=variant.prompt_tokens
                )

    def _blocked_range(self, ticket: QueuedTicket, prediction: Prediction, now: float) -> BlockedRange | None:
        """Return the prompt lengths and the period for which commitments block a ticket; None if none blocks it."""
        commitments = self._model_queues[ticket.model].forecast.commitments
        if prediction.delays is not None:
            breached = [each for each in prediction.delays if each.is_breach(ticket.commitment_rank)]
            ranges = [BlockedRange(*each.blocked_range(ticket.prompt_tokens)) for each in breached]
            return commitments.combined_block(ticket.prompt_tokens, ranges)
        if not prediction.prefill_delay:
            return None
        begins = now + (prediction.wait or 0.0)
        return commitments.blocked_range(
            ticket.commitment_rank,
            ticket.prompt_tokens,
            prediction.prefill_delay,
            begins,
            workers=prediction.workers,
        )

    def _size_variants(self, ticket: QueuedTicket) -> Iterator[QueuedTicket]:
        """Yield smaller and larger variants of a ticket, and last the ticket. The variants share one object."""
        variant, order = ticket.copy_unplaced(), self._model_queues[ticket.model].policy
        variant.max_output_tokens = variant.predicted_output = 1
        variant.is_express = True
        for share in WINDOW_PROMPT_FACTORS:
            variant.prompt_tokens = max(1, ceil(share * ticket.prompt_tokens))
            variant.is_express = variant.is_express and order.is_express(variant)
            yield variant
        yield ticket

    def expiration_error(self, ticket: QueuedTicket, now: float) -> PenstockError:
        """Return the error of a ticket that is past its lease deadline."""
        if self._ttft_targets.is_limited_by_deadline(ticket, ticket.arrived):
            return DeadlinePassed()
        return DeadlineUnreachable.while_waiting(now - ticket.arrived, self._model_queues.retry_after(ticket, now))

    def has_room(self, ticket: QueuedTicket) -> bool:
        """Whether the queue limits admit a ticket. They always admit resumed tickets, which were admitted before."""
        return ticket.is_resumed or self._limits.fits(self._model_queues.waiting, ticket.tokens)

    def can_make_room(self, ticket: QueuedTicket) -> bool:
        """Whether a ticket would fit if all tickets of lower classes were evicted. A guest evicts none."""
        if ticket.is_guest:
            return False
        excess = self._limits.excess(self._model_queues.waiting, ticket.tokens)
        lower = self._model_queues.evictable(ticket.priority)
        return lower.tickets >= excess.tickets and lower.tokens >= excess.tokens

    def queue_full(self, ticket: QueuedTicket, now: float) -> PenstockError:
        """Return the error of a ticket that exceeds the queue limits."""
        waiting, wait = self._model_queues.waiting, self._model_queues.retry_after(ticket, now)
        if self._limits.excess(waiting, 0).tickets:
            rejection: AdmissionRejected = QueueFull(waiting.tickets, wait)
        else:
            rejection = QueueTokensFull(ticket.tokens, waiting.tokens, self._limits.max_tokens, wait)
        window = RejectionWindow(wait / (waiting.tickets + 1), ticket.prompt_tokens, ticket.max_output_tokens)
        rejection.rejection_windows = lambda: (window,)
        return rejection
