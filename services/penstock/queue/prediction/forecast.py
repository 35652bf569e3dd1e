"""When a ticket will have its first token, predicted at its arrival and corrected by how well that was done before.

The prediction follows from the cost of a step, the times at which leases are likely to end (`ttft_model`) and the
prompts that each worker prefills (`prefill_backlog`), all from the reports of schedulers. It is available once a worker
of each scheduler has done a step. Until then, and for engines that report no steps, there is a fallback for retry hints
(`_predict_by_service_rate`): the work ahead over the measured service rate, then the prefill backlog of the next
worker, the ticket's prompt and a step. Safety margins do not learn from the fallback.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import NamedTuple

from penstock.queue.prediction.commitments import TtftCommitments
from penstock.queue.prediction.estimators import PromptSizeHistogram, SafetyMargin
from penstock.queue.prediction.pool_stats import PoolStats, ServiceRate, SlotRelease, combined, merged_releases
from penstock.queue.prediction.prefill_backlog import PendingPrompt, PrefillBacklog, PromptDelay
from penstock.queue.prediction.prefill_sharing import StepCosts
from penstock.queue.prediction.slot_releases import ReleaseCurve
from penstock.queue.prediction.throughput import Throughput
from penstock.queue.prediction.ttft_model import PlacementStats, TokenDemand, TtftModel, WorkAhead, step_costs_of
from penstock.queue.ticket import QueuedTicket

EWMA_GAIN = 1 / 64  # gain; about as many waits are remembered
CORRECTION_BOUNDS = 0.25, 4.0
SATURATION_DELAY_S = 0.25  # s that tickets have to have waited before free slots are believed to be of no use to them
INFLOW_TIME_CONSTANT_S = 0.5  # s; a burst is to be seen while it lasts
CURVE_REBUILD_CHANGE = 0.2  # relative change of how long tickets keep their slots
MAX_RECENT_WAITS = 1_024  # remembered, for their quantiles
EMPTY_CURVE = ReleaseCurve((), 0.0)


class Prediction(NamedTuple):
    """What a ticket that arrives now may expect; None: too little is known."""

    tickets_ahead: int  # tickets
    wait: float | None = None  # s to a lease
    ttft: float | None = None  # s
    after_lease: float = 0.0  # s of it
    raw_wait: float = 0.0  # s; before correction; 0: there is nothing to be learnt from it, as with the next
    raw_ttft: float = 0.0  # s to the first token, likewise
    undisturbed_ttft: float = 0.0  # s to the first token, if nobody comes after it
    prefill_delay: float = 0.0  # s by which its prompt delays those that it passes from its lease on; 0: not known
    delays: Sequence[PromptDelay] | None = None  # of the prompts at its worker; None if it waits and they are not known

    @property
    def min_ttft(self) -> float:
        """Return the s to the first token, or what is known of them."""
        return self.after_lease if self.ttft is None else self.ttft

    @property
    def waits_for_slot(self) -> bool:
        """Tell whether it is for others to leave; what only has its prompt before it is predicted otherwise well."""
        return self.raw_wait > 0 or self.raw_ttft > 0


class ObservedWait(NamedTuple):
    """What a ticket waited for its lease, in s, and what it was said to."""

    predicted: float
    realised: float

    @property
    def lateness(self) -> float:
        """Return the s that it waited longer than predicted; below 0: less."""
        return self.realised - self.predicted


@dataclass(slots=True)
class PoolView:
    """What is the same for all tickets that are asked about at one moment."""

    pool_stats: Sequence[PoolStats]
    now: float
    combined_stats: PoolStats  # of all together, without slots that nobody can use
    ttft_model: TtftModel
    mean_output_tokens: float = (
        -1.0
    )  # tokens of those that went before the last ticket that was asked about, in the mean
    curve: ReleaseCurve = EMPTY_CURVE  # for it

    def is_current(self, pool_stats: Sequence[PoolStats], now: float) -> bool:
        return (
            self.now == now and len(self.pool_stats) == len(pool_stats) and all(map(is_, self.pool_stats, pool_stats))
        )


@dataclass(slots=True)
class Forecast:
    """Of one model."""

    service_rate: ServiceRate = field(default_factory=ServiceRate)
    margins: tuple[SafetyMargin, SafetyMargin] = field(
        default_factory=lambda: (SafetyMargin(), SafetyMargin())
    )  # without a wait, and with
    prompt_sizes: PromptSizeHistogram = field(default_factory=PromptSizeHistogram)
    commitments: TtftCommitments = field(default_factory=TtftCommitments)
    recent_waits: deque[ObservedWait] = field(default_factory=lambda: deque(maxlen=MAX_RECENT_WAITS))  # of late
    prefill_backlog: PrefillBacklog = field(default_factory=PrefillBacklog)
    prompt_inflow: Throughput = field(
        default_factory=lambda: Throughput(time_constant=INFLOW_TIME_CONSTANT_S, warm_up=INFLOW_TIME_CONSTANT_S)
    )  # of prompts
    mean_output_tokens: float = 0.0  # tokens, mean of those placed of late as predicted
    _realised_sum: float = 0.0  # s, faded sums of waits and of their raw predictions
    _predicted_sum: float = 0.0
    _step_costs: StepCosts | None = None  # from the last reports; None: not known
    _saturated_since: float | None = None  # since when tickets wait that no credit was found for
    _curve: ReleaseCurve = EMPTY_CURVE
    _curve_releases: Sequence[Sequence[SlotRelease]] = ()  # one of each scheduler
    _curve_mean_hold: float = 0.0  # s
    _view: PoolView | None = None  # of the last ticket that was asked about; None: something has changed since

    @property
    def correction(self) -> float:
        """Factor that predictions are multiplied by."""
        low, high = CORRECTION_BOUNDS
        return min(high, max(low, self._realised_sum / self._predicted_sum)) if self._predicted_sum else 1.0

    def record_unserved(self, tickets: int, now: float) -> None:
        """Hear how many tickets are left without credit."""
        self._view = None
        if not tickets:
            self._saturated_since = None
        elif self._saturated_since is None:
            self._saturated_since = now

    def record_pool_stats(self, scheduler: str, stats: PoolStats, pool_stats: Sequence[PoolStats]) -> None:
        """Apply a report of `scheduler`; `pool_stats` are the reports of all schedulers."""
        now = stats.received_at
        if stats.has_step_costs:
            steps = self._step_costs = step_costs_of(combined([each for each in pool_stats if each.has_step_costs]))
            mean = self.prompt_sizes.mean_tokens
            self.prefill_backlog.on_report(scheduler, stats.prefill_backlogs, mean, now, steps)
        self.service_rate.record(pool_stats, is_saturated=self._is_saturated(now))

    def record_offer(self, ticket: QueuedTicket, pool_stats: Sequence[PoolStats], now: float) -> None:
        """Count a prompt from its offer on, as later tickets are predicted before it is placed."""
        self._view = None
        if pool_stats and all(each.has_step_costs for each in pool_stats):
            stats = combined(pool_stats)
            self._step_costs = step_costs_of(stats)
            prompt = PendingPrompt(ticket.prompt_tokens, ticket.is_express, ticket.commitment_rank)
            if ticket.ttft_limit:
                prompt.promised_by = ticket.arrived + ticket.ttft_limit
                prompt.usable_share = self.margins[ticket.was_predicted_to_wait].usable_share
            ticket.pending_prompt = prompt
            self.prefill_backlog.on_offered(prompt, now, max(1, stats.workers), self._step_costs)

    def record_lease(self, ticket: QueuedTicket, scheduler: str, worker: str, now: float) -> None:
        self._view = None
        if ticket.pending_prompt and self._step_costs:
            self.prefill_backlog.on_placed(ticket.pending_prompt, worker, scheduler, now, self._step_costs)
        self.prompt_inflow.record(ticket.prompt_tokens, now)
        self.prompt_sizes.record(ticket.prompt_tokens)
        self.mean_output_tokens += (ticket.expected_output - self.mean_output_tokens) * (
            EWMA_GAIN if self.mean_output_tokens else 1.0
        )

    def record_first_token(self, ticket: QueuedTicket, realised: float) -> None:
        """Learn from a first token; `realised` is in s from its ticket's arrival."""
        if ticket.raw_ttft:
            self.record_ratio(ticket.raw_ttft, realised)
        waited, predicted, prompt = ticket.was_predicted_to_wait, ticket.predicted_ttft, ticket.pending_prompt
        if prompt:
            if not waited:  # the expectation includes the delay by prompts that were admitted later
                predicted = max(predicted, prompt.expected_at - ticket.arrived)
            self.discard_prompt(ticket, ticket.arrived + realised)
        if ticket.ttft_limit and (prompt or waited):
            self.margins[waited].record(predicted, realised, ticket.ttft_limit)

    def discard_prompt(self, ticket: QueuedTicket, now: float) -> None:
        """Forget the prompt of an offered ticket: it is complete at `now`, or will not be computed."""
        if ticket.pending_prompt and self._step_costs:
            self.prefill_backlog.remove(ticket.pending_prompt, now, self._step_costs)
            ticket.pending_prompt = self._view = None

    def record_wait(self, prediction: float, raw: float, realised: float) -> None:
        """Learn from a ticket that got its lease; `prediction` is the corrected one."""
        self.recent_waits.append(ObservedWait(prediction, realised))
        if raw:
            self.record_ratio(raw, realised)

    def record_ratio(self, raw: float, realised: float) -> None:
        """Learn what uncorrected predictions of late are to be multiplied by."""
        self._realised_sum += EWMA_GAIN * (realised - self._realised_sum)
        self._predicted_sum += EWMA_GAIN * (raw - self._predicted_sum)

    @property
    def headroom(self) -> float:
        """Return the share of a promise that a prediction with a wait may take."""
        return self.margins[True].usable_share

    def usable_share(self, prediction: Prediction) -> float:
        """Return the share of a promise that it may take."""
        return self.margins[prediction.waits_for_slot].usable_share

    def predict(
        self, ticket: QueuedTicket, ahead: WorkAhead, pool_stats: Sequence[PoolStats], credit: int, now: float
    ) -> Prediction:
        """Say what `ticket` may expect behind `ahead`, where `credit` more tickets would be taken at once."""
        if not pool_stats:
            return Prediction(round(ahead.tickets))
        view = self._view
        if view is None or not view.is_current(pool_stats, now):
            if not all(each.has_step_costs for each in pool_stats):
                return self._predict_by_service_rate(ticket, ahead, pool_stats, credit, now)
            view = self._view = self._new_view(pool_stats, now)
        return self._predict_by_step_costs(ticket, ahead, view)

    def _predict_by_step_costs(self, ticket: QueuedTicket, ahead: WorkAhead, view: PoolView) -> Prediction:
        answer = ahead.mean_output_tokens or self.mean_output_tokens
        if answer != view.mean_output_tokens:
            view.mean_output_tokens, view.curve = answer, self._curve_for(view.pool_stats, view.combined_stats, answer)
        shorter = self.prompt_sizes.share_of_shorter(ticket.prompt_tokens)
        demand = TokenDemand(ticket.prompt_tokens, ticket.tokens, shorter, ticket.is_express)
        found = view.ttft_model.estimate(view.curve, ahead, demand)
        tickets, correction = round(ahead.tickets), self.correction
        if not found.waits_for_slot:
            after = found.ttft - found.wait
            alone, delay = found.undisturbed_ttft, found.prefill_delay
            return Prediction(tickets, found.wait, found.ttft, after, 0.0, 0.0, alone, delay, found.delays)
        wait, first = correction * found.wait, correction * found.ttft
        undisturbed = correction * found.undisturbed_ttft
        return Prediction(tickets, wait, first, first - wait, 0.0, found.ttft, undisturbed, found.prefill_delay)

    def _new_view(self, pool_stats: Sequence[PoolStats], now: float) -> PoolView:
        speed = combined(pool_stats)
        if speed.leases < speed.slots and self._is_saturated(now):
            speed = speed._replace(slots=speed.leases)
        placements = PlacementStats(self.prompt_inflow.tokens_per_second(now), self.prompt_sizes.mean_tokens)
        return PoolView(pool_stats, now, speed, TtftModel(speed, now, self.prefill_backlog, placements))

    def _curve_for(
        self, pool_stats: Sequence[PoolStats], combined_stats: PoolStats, mean_output_tokens: float
    ) -> ReleaseCurve:
        """Return the curve of reports, `speed` all together, where answers have so many tokens."""
        mean = combined_stats.decode_step_time * mean_output_tokens
        curves = [each.releases for each in pool_stats]
        is_known = len(curves) == len(self._curve_releases) and all(map(is_, curves, self._curve_releases))
        if not is_known or abs(mean - self._curve_mean_hold) > CURVE_REBUILD_CHANGE * mean:
            self._curve_releases, self._curve_mean_hold = curves, mean
            self._curve = ReleaseCurve(
                merged_releases(curves), mean, max(0, combined_stats.slots - combined_stats.leases)
            )
        return self._curve

    def _predict_by_service_rate(
        self, ticket: QueuedTicket, ahead: WorkAhead, pool_stats: Sequence[PoolStats], credit: int, now: float
    ) -> Prediction:
        tickets = round(ahead.tickets)
        nearest = min(
            pool_stats, key=lambda each: each.next_worker_backlog_time + each.prefill_time(ticket.prompt_tokens)
        )
        after_lease = nearest.next_worker_backlog_time + nearest.prefill_time(ticket.prompt_tokens)
        free = 0 if self._is_saturated(now) else max(credit, sum(each.free_slots for each in pool_stats))
        if ahead.tickets < free:
            return Prediction(tickets, 0.0, after_lease, after_lease)
        if not self.service_rate.saturated:
            return Prediction(tickets, after_lease=after_lease)
        # Its own place has to come free as well: by what one ticket of the line comes to.
        mean = ahead.work / ahead.tickets if ahead.tickets >= 1 else ticket.work
        raw = mean * (ahead.tickets - free + 1) / self.service_rate.saturated
        wait = raw * self.correction
        return Prediction(tickets, wait, wait + after_lease, after_lease, raw)

    def _is_saturated(self, now: float) -> bool:
        return self._saturated_since is not None and now - self._saturated_since > SATURATION_DELAY_S
