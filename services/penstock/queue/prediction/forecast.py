"""Forecast: predicts wait and TTFT of a ticket at its arrival, corrected by the errors of earlier predictions.

The prediction follows from the cost of a step, the times at which leases are likely to end (`ttft_model`) and the
prompts that each worker prefills (`prefill_backlog`), all from the reports of schedulers. It is available once a worker
of each scheduler has done a step. Until then, and for engines that report no steps, there is a fallback for retry hints
(`_predict_by_service_rate`): the wait is the work ahead of the ticket, less the work that free slots take at once,
divided by the measured service rate of full batches. The prefill backlog of the next worker, the ticket's own prompt
and one step are added for the first token. Safety margins do not learn from the fallback.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import NamedTuple

from penstock.queue.prediction.commitments import TtftCommitments
from penstock.queue.prediction.estimators import PromptSizeHistogram, SafetyMargin
from penstock.queue.prediction.pool_stats import PoolStats, ServiceRate, SlotRelease, combined, merged_releases
from penstock.queue.prediction.prefill_backlog import PrefillBacklog, RemotePrompt
from penstock.queue.prediction.prefill_sharing import StepCosts
from penstock.queue.prediction.slot_releases import ReleaseCurve
from penstock.queue.prediction.throughput import Throughput
from penstock.queue.prediction.ttft_model import PlacementStats, TokenDemand, TtftModel, WorkAhead, step_costs_of
from penstock.queue.prediction.worker_backlog import PendingPrompt, PromptDelay
from penstock.queue.ticket import QueuedTicket
from penstock.v1.inference_pb2 import Priority

EWMA_GAIN = 1 / 64  # weight of the latest wait: about the latest 64 count
CORRECTION_BOUNDS = 0.25, 4.0
SATURATION_DELAY_S = 0.25  # s for which tickets must wait without credit before free slots are ignored
INFLOW_TIME_CONSTANT_S = 0.5  # s; short, so that a burst is measured while it lasts
CURVE_REBUILD_CHANGE = 0.2  # relative change of the mean hold time that rebuilds the curve
MAX_RECENT_WAITS = 1_024  # waits kept for quantiles
EMPTY_CURVE = ReleaseCurve((), 0.0)


class Prediction(NamedTuple):
    """Prediction for a ticket that arrives now; None: not known."""

    tickets_ahead: int
    wait: float | None = None  # s to a lease
    ttft: float | None = None  # s
    after_lease: float = 0.0  # s from the lease to the first token
    raw_wait: float = 0.0  # s before correction; 0: the correction does not learn from it, as for the next
    raw_ttft: float = 0.0  # s to the first token, before correction
    undisturbed_ttft: float = 0.0  # s to the first token without later arrivals
    prefill_delay: float = 0.0  # s by which its prompt delays the prompts that it passes at its worker; 0: not known
    workers: int = 1  # of the model
    delays: Sequence[PromptDelay] | None = None  # of the prompts at its worker; None: it waits, so they are not known

    @property
    def min_ttft(self) -> float:
        """The s to the first token, or the known part of them."""
        return self.after_lease if self.ttft is None else self.ttft

    @property
    def waits_for_slot(self) -> bool:
        """Whether the ticket waits for a slot. Predictions without such a wait have other errors."""
        return self.raw_wait > 0 or self.raw_ttft > 0


class ObservedWait(NamedTuple):
    """Predicted and realised wait of a ticket for its lease, in s."""

    predicted: float
    realised: float

    @property
    def lateness(self) -> float:
        """The s by which the wait exceeded its prediction; negative if it was shorter."""
        return self.realised - self.predicted


@dataclass(slots=True)
class PoolView:
    """State of the pool at one time, which all predictions of that time share."""

    pool_stats: Sequence[PoolStats]
    now: float
    combined_stats: PoolStats  # of all schedulers, without slots that cannot be used
    ttft_model: TtftModel
    mean_output_tokens: float = -1.0  # mean of the work ahead in the latest prediction
    curve: ReleaseCurve = EMPTY_CURVE  # for this mean

    def is_current(self, pool_stats: Sequence[PoolStats], now: float) -> bool:
        return (
            self.now == now and len(self.pool_stats) == len(pool_stats) and all(map(is_, self.pool_stats, pool_stats))
        )


@dataclass(slots=True)
class Forecast:
    """Predictions of one model, and the statistics that they learn from."""

    service_rate: ServiceRate = field(default_factory=ServiceRate)
    # Without and with a wait for a slot.
    margins: tuple[SafetyMargin, SafetyMargin] = field(default_factory=lambda: (SafetyMargin(), SafetyMargin()))
    prompt_sizes: PromptSizeHistogram = field(default_factory=PromptSizeHistogram)
    commitments: TtftCommitments = field(default_factory=TtftCommitments)
    recent_waits: deque[ObservedWait] = field(default_factory=lambda: deque(maxlen=MAX_RECENT_WAITS))
    prefill_backlog: PrefillBacklog = field(default_factory=PrefillBacklog)
    prompt_inflow: Throughput = field(
        default_factory=lambda: Throughput(time_constant=INFLOW_TIME_CONSTANT_S, warm_up=INFLOW_TIME_CONSTANT_S)
    )  # prompt tokens that are leased
    mean_output_tokens: float = 0.0  # mean of the predictions of recently leased tickets
    _realised_sum: float = 0.0  # s; exponentially weighted sums of waits and of their raw predictions
    _predicted_sum: float = 0.0
    _step_costs: StepCosts | None = None  # from the latest reports; None: not known
    _saturated_since: float | None = None  # s; time since which tickets wait without credit
    # The same for tickets of other classes than batch, which may take all free slots.
    _blocked_since: float | None = None
    _curve: ReleaseCurve = EMPTY_CURVE
    _curve_releases: Sequence[Sequence[SlotRelease]] = ()  # one curve per scheduler
    _curve_mean_hold: float = 0.0  # s
    _view: PoolView | None = None  # of the latest prediction; None: outdated

    @property
    def correction(self) -> float:
        """Factor by which raw predictions are multiplied."""
        low, high = CORRECTION_BOUNDS
        return min(high, max(low, self._realised_sum / self._predicted_sum)) if self._predicted_sum else 1.0

    def record_unserved(self, tickets: int, batch_tickets: int, now: float) -> None:
        """Record the number of tickets that are left without credit, and how many of them are batch tickets."""
        self._view = None
        if not tickets:
            self._saturated_since = None
        elif self._saturated_since is None:
            self._saturated_since = now
        if tickets == batch_tickets:
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = now

    def record_pool_stats(self, scheduler: str, stats: PoolStats, pool_stats: Sequence[PoolStats]) -> None:
        """Apply a report of `scheduler`; `pool_stats` are the reports of all schedulers."""
        now = stats.received_at
        if stats.has_step_costs:
            steps = self._step_costs = step_costs_of(combined([each for each in pool_stats if each.has_step_costs]))
            mean = self.prompt_sizes.mean_tokens
            self.prefill_backlog.on_report(scheduler, stats.prefill_backlogs, mean, now, steps)
            self.prefill_backlog.on_capacities(scheduler, stats.capacity_by_worker, now)
        self.service_rate.record(pool_stats, is_saturated=_has_lasted(self._saturated_since, now))

    def record_offer(self, ticket: QueuedTicket, pool_stats: Sequence[PoolStats], now: float) -> None:
        """Add a prompt to the backlog at its offer, because later tickets are predicted before it is placed.

        Batch prompts are in no backlog: workers prefill them after all others.
        """
        self._view = None
        if pool_stats and not ticket.is_batch and all(each.has_step_costs for each in pool_stats):
            stats = combined(pool_stats)
            self._step_costs = step_costs_of(stats)
            prompt = PendingPrompt(ticket.prompt_tokens, ticket.is_express, ticket.commitment_rank, ticket.tokens)
            if ticket.ttft_limit:
                prompt.promised_by = ticket.promised_by
                prompt.usable_share = self.margins[ticket.was_predicted_to_wait].usable_share
            ticket.pending_prompt = prompt
            self.prefill_backlog.on_offered(prompt, now, max(1, stats.workers), self._step_costs)

    def record_remote_prompts(self, scheduler: str, prompts: Iterable[RemotePrompt], now: float) -> None:
        """Record prompts of other shards that `scheduler` has placed."""
        if self._step_costs:
            self._view = None
            for each in prompts:
                if each.priority != Priority.PRIORITY_BATCH:
                    self.prefill_backlog.on_placed_elsewhere(each, scheduler, now, self._step_costs)
                    self._record_prompt(each.tokens, now)

    def record_lease(self, ticket: QueuedTicket, scheduler: str, worker: str, now: float) -> None:
        self._view = None
        if ticket.pending_prompt and self._step_costs:
            self.prefill_backlog.on_placed(ticket.pending_prompt, worker, scheduler, now, self._step_costs)
        if not ticket.is_batch:
            self._record_prompt(ticket.prompt_tokens, now)
        self.mean_output_tokens += (ticket.expected_output - self.mean_output_tokens) * (
            EWMA_GAIN if self.mean_output_tokens else 1.0
        )

    def _record_prompt(self, tokens: int, now: float) -> None:
        """Record a placed prompt that may overtake others, as batch prompts do not."""
        self.prompt_inflow.record(tokens, now)
        self.prompt_sizes.record(tokens)

    def record_first_token(self, ticket: QueuedTicket, realised: float) -> None:
        """Record a first token; `realised` is in s from the arrival of its ticket."""
        if ticket.raw_ttft and not ticket.is_batch:
            self.record_ratio(ticket.raw_ttft, realised)
        waited, predicted, prompt = ticket.was_predicted_to_wait, ticket.predicted_ttft, ticket.pending_prompt
        if prompt:
            if not waited:  # the expectation includes the delay by prompts that were admitted later
                predicted = max(predicted, prompt.expected_at - ticket.arrived)
            self.discard_prompt(ticket, ticket.arrived + realised, is_complete=True)
        if ticket.ttft_limit and (prompt or waited):
            self.margins[waited].record(predicted, realised, ticket.ttft_limit)

    def discard_prompt(self, ticket: QueuedTicket, now: float, *, is_complete: bool = False) -> None:
        """Remove the prompt of an offered ticket, which will not be computed or is complete at `now`."""
        if ticket.pending_prompt and self._step_costs:
            self.prefill_backlog.remove(ticket.pending_prompt, now, self._step_costs, is_complete=is_complete)
            ticket.pending_prompt = self._view = None

    def record_wait(self, prediction: float, raw: float, realised: float) -> None:
        """Record the wait of a leased ticket; `prediction` is the corrected one."""
        self.recent_waits.append(ObservedWait(prediction, realised))
        if raw:
            self.record_ratio(raw, realised)

    def record_ratio(self, raw: float, realised: float) -> None:
        """Record the ratio between a realised time and its raw prediction."""
        self._realised_sum += EWMA_GAIN * (realised - self._realised_sum)
        self._predicted_sum += EWMA_GAIN * (raw - self._predicted_sum)

    @property
    def headroom(self) -> float:
        """Share of a TTFT limit that a prediction with a wait may take."""
        return self.margins[True].usable_share

    def usable_share(self, prediction: Prediction) -> float:
        """Return the share of a TTFT limit that a prediction may take."""
        return self.margins[prediction.waits_for_slot].usable_share

    def predict(
        self, ticket: QueuedTicket, ahead: WorkAhead, pool_stats: Sequence[PoolStats], credit: int, now: float
    ) -> Prediction:
        """Predict wait and TTFT of a ticket behind `ahead`, if `credit` more tickets could be offered at once."""
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
        workers = max(1, view.combined_stats.workers)
        if not found.waits_for_slot:
            after = found.ttft - found.wait
            alone, delay = found.undisturbed_ttft, found.prefill_delay
            return Prediction(tickets, found.wait, found.ttft, after, 0.0, 0.0, alone, delay, workers, found.delays)
        wait, first = correction * found.wait, correction * found.ttft
        undisturbed = correction * found.undisturbed_ttft
        delay = found.prefill_delay
        return Prediction(tickets, wait, first, first - wait, 0.0, found.ttft, undisturbed, delay, workers)

    def _new_view(self, pool_stats: Sequence[PoolStats], now: float) -> PoolView:
        stats = combined(pool_stats)
        if stats.leases < stats.slots and _has_lasted(self._blocked_since, now):
            stats = stats._replace(slots=stats.leases)
        placements = PlacementStats(self.prompt_inflow.tokens_per_second(now), self.prompt_sizes.mean_tokens)
        return PoolView(pool_stats, now, stats, TtftModel(stats, now, self.prefill_backlog, placements))

    def _curve_for(
        self, pool_stats: Sequence[PoolStats], combined_stats: PoolStats, mean_output_tokens: float
    ) -> ReleaseCurve:
        """Return the release curve of all schedulers for answers of `mean_output_tokens`."""
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
        since = self._saturated_since if ticket.is_batch else self._blocked_since
        free = 0 if _has_lasted(since, now) else max(credit, sum(each.free_slots for each in pool_stats))
        if ahead.tickets < free:
            return Prediction(tickets, 0.0, after_lease, after_lease)
        if not self.service_rate.saturated:
            return Prediction(tickets, after_lease=after_lease)
        # The slot of the ticket itself must be released as well: one more ticket of mean work.
        mean = ahead.work / ahead.tickets if ahead.tickets >= 1 else ticket.work
        raw = mean * (ahead.tickets - free + 1) / self.service_rate.saturated
        wait = raw * self.correction
        return Prediction(tickets, wait, wait + after_lease, after_lease, raw)


def _has_lasted(since: float | None, now: float) -> bool:
    return since is not None and now - since > SATURATION_DELAY_S
