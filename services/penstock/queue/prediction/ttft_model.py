"""TTFT model: predicts lease and first token of a ticket from slot releases and step costs.

A step takes the decode step time, and the cost of each prompt token in it. The time to the n-th step is therefore n
decode step times, and the cost of the prompt tokens in these steps. A ticket with n tickets ahead gets the (n+1)th slot
that is released; until then, the prompts of the tickets ahead are computed, within the budgets of the steps. From then
on its worker shares each step's budget among prompts. The prompts that a waiting ticket will meet there are not known,
so a mean worker is assumed. A ticket that has a slot now joins the prompts at the next worker (`prefill_backlog`), and
later prompts overtake it at the recent inflow rate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import NamedTuple

from penstock.queue.prediction.pool_stats import PoolStats
from penstock.queue.prediction.prefill_backlog import PrefillBacklog
from penstock.queue.prediction.prefill_sharing import OLDEST_PROMPT_BUDGET_SHARE, StepCosts
from penstock.queue.prediction.slot_releases import ReleaseCurve
from penstock.queue.prediction.worker_backlog import PromptDelay

MIN_BUDGET_SHARE = 1 / 8  # of the budget; a prompt gets at least this share
MAX_INFLOW_BUDGETS = 16.0  # budgets per step; a larger inflow makes no difference
INFLOW_PERSISTENCE_SHARE = 0.6  # of the recent inflow of prompts, which is assumed to continue
RATE_WINDOW_SLOTS = 8  # next releases, over which the release rate is measured


class WorkAhead(NamedTuple):
    """The tickets that are dispatched before a ticket."""

    tickets: float = 0.0
    work: float = 0.0  # tokens, prompt and predicted output
    prompt_tokens: float = 0.0  # tokens
    reserved_tokens: float = 0.0  # prompt and output tokens

    @property
    def mean_output_tokens(self) -> float:
        """Return the mean of the predicted output tokens; 0.0 if there is no ticket."""
        return max(1.0, (self.work - self.prompt_tokens) / self.tickets) if self.tickets >= 1 else 0.0

    def plus(self, other: "RemoteBacklog", mean_output_tokens: float) -> "WorkAhead":
        """Return this work and that of other shards, whose answers are assumed to have `mean_output_tokens`."""
        return WorkAhead(
            self.tickets + other.tickets,
            self.work + other.prompt_tokens + other.tickets * mean_output_tokens,
            self.prompt_tokens + other.prompt_tokens,
            self.reserved_tokens + other.tokens,
        )


class RemoteBacklog(NamedTuple):
    """Waiting tickets of one class at other shards."""

    tickets: float
    prompt_tokens: float  # tokens
    tokens: float  # prompt and output tokens
    tickets_per_virtual_token: float = 0.0  # dispatched while the virtual time advances by one; 0: none is kept

    def ahead_of(self, virtual_tokens: float) -> "RemoteBacklog":
        """Return the work that is dispatched while the virtual time advances by `virtual_tokens`.

        It may be more than waits now, because the tenants that wait are assumed to go on to send tickets.
        """
        if not self.tickets_per_virtual_token or virtual_tokens == inf:
            return self
        share = self.tickets_per_virtual_token * virtual_tokens / self.tickets if self.tickets else 0.0
        return RemoteBacklog(share * self.tickets, share * self.prompt_tokens, share * self.tokens)


class TokenDemand(NamedTuple):
    """The demand of a ticket, in tokens."""

    prompt_tokens: int
    tokens: int  # prompt and output
    share_of_shorter: float  # share of all prompt tokens that belongs to shorter prompts
    is_express: bool = False


class PlacementStats(NamedTuple):
    """The tickets that were placed recently; 0: not known."""

    prompt_tokens_per_second: float = 0.0  # over all workers
    mean_prompt_tokens: float = 0.0


NO_PLACEMENTS = PlacementStats()


class TtftEstimate(NamedTuple):
    """Times in s from now, at least 0."""

    wait: float  # to the lease
    ttft: float
    waits_for_slot: bool  # the ticket waits for a slot, and not only for its prompt
    undisturbed_ttft: float  # to the first token, without later arrivals
    prefill_delay: float  # by which its prompt delays the prompts that it passes at its worker
    delays: Sequence[PromptDelay] | None = None  # of the prompts at its worker; None: it waits, and they are not known


@dataclass(slots=True)
class SlotEstimate:
    """The slot of a ticket, and the prompt tokens of its worker that are computed concurrently with its prompt."""

    wait: float  # s from now, to the lease
    available_in: float  # s from now, at least 0
    pending_prefill_tokens: float  # of earlier prompts
    inflow_tokens: float  # of later prompts, per step


class TtftModel:
    """Estimates of one time, from statistics with step costs.

    The time of a slot is computed once for all tickets that wait for the same slot.
    """

    __slots__ = (
        "_fleet_tokens_per_second",
        "_now",
        "_placements",
        "_prefill_backlog",
        "_slot_estimates",
        "_stats",
        "_step_costs",
        "_workers",
    )

    def __init__(
        self, stats: PoolStats, now: float, prefill_backlog: PrefillBacklog, placements: PlacementStats = NO_PLACEMENTS
    ) -> None:
        self._stats = stats
        self._now = now
        self._prefill_backlog = prefill_backlog
        self._placements = placements
        self._workers = max(1, stats.workers)
        self._step_costs = step_costs_of(stats)
        self._fleet_tokens_per_second = self._workers * self._step_costs.tokens_per_second
        self._slot_estimates: dict[tuple[ReleaseCurve, WorkAhead, float], SlotEstimate] = {}

    def estimate(self, curve: ReleaseCurve, ahead: WorkAhead, demand: TokenDemand) -> TtftEstimate:
        """`curve`: slot releases after the report, for the tickets in `ahead`."""
        count = _slots_to_free(self._stats, ahead, demand)
        if count <= 0 and ahead.tickets < 1:
            return self._estimate_without_wait(demand)
        slot = self._slot_estimates.get((curve, ahead, count))
        if slot is None:
            slot = self._slot_estimates[curve, ahead, count] = self._slot_estimate(curve, ahead, count)
        steps, pending = self._step_costs, slot.pending_prefill_tokens
        first = slot.available_in + _prefill_time(steps, demand, pending, slot.inflow_tokens)
        alone = slot.available_in + _prefill_time(steps, demand, pending) if slot.inflow_tokens else first
        return TtftEstimate(slot.wait, first, count > 0, alone, self._prefill_delay(demand))

    def _estimate_without_wait(self, demand: TokenDemand) -> TtftEstimate:
        """Estimate a ticket that has a slot and nothing ahead of it: the prompts at its worker are known."""
        joined = self._prefill_backlog.estimate_join(
            demand.prompt_tokens,
            demand.tokens,
            is_express=demand.is_express,
            now=self._now,
            workers=self._workers,
            steps=self._step_costs,
        )
        inflow_share = min(1.0, self._placements.prompt_tokens_per_second / self._fleet_tokens_per_second)
        # Shorter prompts that arrive while it is overtaken overtake it as well.
        left_share = 1 - INFLOW_PERSISTENCE_SHARE * demand.share_of_shorter * inflow_share
        return TtftEstimate(
            0.0, joined.ttft / left_share, False, joined.ttft, self._prefill_delay(demand), joined.delays
        )

    def _prefill_delay(self, demand: TokenDemand) -> float:
        return demand.prompt_tokens / self._step_costs.tokens_per_second

    def _slot_estimate(self, curve: ReleaseCurve, ahead: WorkAhead, count: float) -> SlotEstimate:
        stats, steps, report_age = self._stats, self._step_costs, max(0.0, self._now - self._stats.received_at)
        # Leases that wait at a worker for its next slot.
        ahead_of_slots = max(0, stats.available_leases + stats.leases - stats.slots)
        wait, left = _time_to_slot(stats, steps, curve, ahead, count - ahead_of_slots)
        at = wait
        if ahead_of_slots:
            at, left = _time_to_slot(stats, steps, curve, ahead, count)
        wait, at = max(0.0, wait - report_age), at - report_age
        if at < 0:
            left = max(0.0, left + at * steps.tokens_per_second)
        current_step = stats.step_time / 2 if count <= 0 and stats.leases else 0.0
        inflow = self._prefill_inflow(curve, ahead, count)
        return SlotEstimate(wait, max(0.0, at) + current_step, left, inflow)

    def _prefill_inflow(self, curve: ReleaseCurve, ahead: WorkAhead, count: float) -> float:
        """Return the prompt tokens that a worker receives per step while tickets wait.

        They belong to later tickets, so their mean is that of recent placements. The mean of the few tickets ahead
        would turn one long prompt into a stream of long prompts.
        """
        if count <= 0 or not ahead.tickets:
            return 0.0
        took = curve.time_of(count + RATE_WINDOW_SLOTS) - curve.time_of(count)
        slots = RATE_WINDOW_SLOTS * self._step_costs.decode_step_time / took if took > 0 else 0.0
        mean = self._placements.mean_prompt_tokens or ahead.prompt_tokens / ahead.tickets
        return min(MAX_INFLOW_BUDGETS * self._step_costs.budget_tokens, slots * mean / self._workers)


def step_costs_of(stats: PoolStats) -> StepCosts:
    workers = max(1, stats.workers)
    budget = max(1.0, stats.max_step_tokens - min(stats.leases, stats.slots) / workers)
    decode, token = stats.decode_step_time, stats.seconds_per_prefill_token
    full = decode + token * budget
    return StepCosts(budget, decode, token, full, budget / full)


def _slots_to_free(stats: PoolStats, ahead: WorkAhead, demand: TokenDemand) -> float:
    """Return the number of slots that must be released before a ticket has a slot and enough KV blocks."""
    slots = stats.placed_since + ahead.tickets + 1 - (stats.slots - stats.leases)
    if not stats.leased_tokens or not stats.leases:
        return slots
    mean = stats.leased_tokens / stats.leases
    return max(slots, stats.placed_since + (ahead.reserved_tokens + demand.tokens - stats.free_tokens) / mean)


def _time_to_slot(
    stats: PoolStats, steps: StepCosts, curve: ReleaseCurve, ahead: WorkAhead, count: float
) -> tuple[float, float]:
    """Return the s until `count` slots are released, and the prompt tokens of a worker that are left by then."""
    decoding = curve.time_of(count)
    prompts = (stats.pending_prefill_tokens + ahead.prompt_tokens) / max(1, stats.workers)
    done = min(prompts, steps.budget_tokens * decoding / steps.decode_step_time)
    return decoding + steps.seconds_per_prefill_token * done, prompts - done


def _prefill_time(steps: StepCosts, demand: TokenDemand, pending_tokens: float, inflow_tokens: float = 0.0) -> float:
    """Return the s from a slot to the first token.

    `pending_tokens` of other prompts are left at the worker by then, and `inflow_tokens` more come with each step.
    """
    budget, prompt, shorter = steps.budget_tokens, demand.prompt_tokens, demand.share_of_shorter
    is_shared = pending_tokens > 0 and pending_tokens + prompt > budget
    share = 1 - OLDEST_PROMPT_BUDGET_SHARE * (1 - shorter) if is_shared else 1.0
    free = max(MIN_BUDGET_SHARE * budget, share * budget - shorter * inflow_tokens)
    count = max(1, ceil((shorter * pending_tokens + prompt) / free))
    beside = min(pending_tokens + prompt + inflow_tokens * (count - 1), count * budget)
    return count * steps.decode_step_time + steps.seconds_per_prefill_token * beside
