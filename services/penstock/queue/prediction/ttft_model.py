"""TTFT model: predicts lease and first token of a ticket from slot releases and step costs.

A step takes `decode_step` and `prefill_token` more for each prompt token in it, so the time to a step is its number
times the one and what was prefilled until then times the other. A ticket with n before it gets the slot that falls free
as the (n+1)th; until then the prompts of all before it are computed, as far as the steps' budgets hold them.
From there on its own worker splits each step's budget: short prompts pass long ones, but for a share of the oldest.
"""

from dataclasses import dataclass
from math import ceil, inf
from typing import NamedTuple

from penstock.queue.prediction.pool_stats import PoolStats
from penstock.queue.prediction.slot_releases import ReleaseCurve

OLDEST_PROMPT_BUDGET_SHARE = (
    0.25  # of a step's budget, which workers keep for the prompt that came first, however long it is
)
MIN_BUDGET_SHARE = 1 / 8  # of the budget that is taken to be left to a prompt, whatever passes it
INFLOW_PERSISTENCE_SHARE = 0.5  # of what comes of late, that is taken to go on
RATE_WINDOW_SLOTS = 8  # slots that are looked at to tell how fast they fall free


class WorkAhead(NamedTuple):
    """What goes before a ticket."""

    tickets: float = 0.0
    work: float = 0.0  # tokens, prompt and predicted output
    prompt_tokens: float = 0.0  # tokens
    reserved_tokens: float = 0.0  # prompt and output, as they are promised

    @property
    def mean_output_tokens(self) -> float:
        """Return the tokens of an answer as predicted, in the mean; 0: nothing is before it."""
        return max(1.0, (self.work - self.prompt_tokens) / self.tickets) if self.tickets >= 1 else 0.0


class TokenDemand(NamedTuple):
    """What a ticket asks for, in tokens."""

    prompt_tokens: int
    tokens: int  # prompt and output
    share_of_shorter: float  # of all prompt tokens, in prompts shorter than its own


class ArrivalStats(NamedTuple):
    """What comes while a ticket waits."""

    report_age: float  # s since the report
    prompt_tokens_per_second: float  # prompt tokens per second that go to workers of late
    mean_prompt_tokens: float  # tokens, mean of prompts


class StepCosts(NamedTuple):
    """What steps are like, and what they have before them."""

    budget_tokens: float  # prompt tokens of one
    decode_step_time: float  # s of one that prefills nothing
    seconds_per_prefill_token: float  # s by which a prompt token makes one longer
    full_step_time: float  # s of one that spends its budget
    workers: int
    pending_prefill_tokens: float  # prompt tokens, on all workers


class TtftEstimate(NamedTuple):
    """In s from now, at least 0."""

    wait: float  # to the lease
    ttft: float
    waits_for_slot: bool  # for a slot, and not only for its prompt
    undisturbed_ttft: float  # to the first token, if nobody comes after it
    prefill_delay: float  # by which its prompt delays those that it passes, from its lease on


@dataclass(slots=True)
class SlotEstimate:
    """When a ticket has a slot, and what there is to prefill beside its prompt from then on, in tokens of a worker."""

    wait: float  # s from now, to the lease
    available_in: float  # s from now, at least 0
    pending_prefill_tokens: float  # of prompts that came before it
    inflow_tokens: float  # of others, that come with each step
    max_inflow_tokens: float  # of these, until there is no slot for more


class TtftModel:
    """What tickets may expect that are asked about at one time, by a report that has a law.

    When a slot comes is worked out once for all that wait for the same one, whatever their prompts.
    """

    __slots__ = ("_arrivals", "_slot_estimates", "_stats", "_step_costs")

    def __init__(self, stats: PoolStats, arrivals: ArrivalStats) -> None:
        self._stats = stats
        self._arrivals = arrivals
        self._step_costs = _step_costs(stats)
        self._slot_estimates: dict[tuple[ReleaseCurve, WorkAhead, float], SlotEstimate] = {}

    def estimate(self, curve: ReleaseCurve, ahead: WorkAhead, demand: TokenDemand) -> TtftEstimate:
        """`curve`: when slots fall free from the report on, beside `line`."""
        steps, count = self._step_costs, _slots_to_free(self._stats, ahead, demand)
        slot = self._slot_estimates.get((curve, ahead, count))
        if slot is None:
            slot = self._slot_estimates[curve, ahead, count] = self._slot_estimate(curve, ahead, count)
        first = slot.available_in + _prefill_time(
            steps, demand, slot.pending_prefill_tokens, slot.inflow_tokens, slot.max_inflow_tokens
        )
        alone = (
            slot.available_in + _prefill_time(steps, demand, slot.pending_prefill_tokens)
            if slot.inflow_tokens
            else first
        )
        takes = steps.full_step_time * demand.prompt_tokens / steps.budget_tokens / steps.workers
        return TtftEstimate(slot.wait, first, count > 0, alone, takes)

    def _slot_estimate(self, curve: ReleaseCurve, ahead: WorkAhead, count: float) -> SlotEstimate:
        speed, steps, arrivals = self._stats, self._step_costs, self._arrivals
        # Leases that wait at a worker for the next slot.
        ahead_of_slots = max(0, speed.available_leases + speed.leases - speed.slots)
        wait, left = _time_to_slot(steps, curve, ahead, count - ahead_of_slots)
        at = wait
        if ahead_of_slots:
            at, left = _time_to_slot(steps, curve, ahead, count)
        wait, at = max(0.0, wait - arrivals.report_age), at - arrivals.report_age
        if at < 0:
            left = max(0.0, left + at * steps.budget_tokens / steps.full_step_time)
        if count > 0:
            return SlotEstimate(wait, max(0.0, at), left, _prefill_inflow(steps, curve, ahead, count), inf)
        at = max(0.0, at) + (speed.step_time / 2 if speed.leases else 0.0)  # a step is under way
        inflow = INFLOW_PERSISTENCE_SHARE * arrivals.prompt_tokens_per_second * steps.full_step_time / steps.workers
        return SlotEstimate(wait, at, left, inflow, -count * arrivals.mean_prompt_tokens / steps.workers)


def _step_costs(stats: PoolStats) -> StepCosts:
    workers = max(1, stats.workers)
    budget = max(1.0, stats.max_step_tokens - min(stats.leases, stats.slots) / workers)
    decode, token = stats.decode_step_time, stats.seconds_per_prefill_token
    return StepCosts(budget, decode, token, decode + token * budget, workers, stats.pending_prefill_tokens)


def _slots_to_free(stats: PoolStats, ahead: WorkAhead, demand: TokenDemand) -> float:
    """Return how many slots have to fall free for a ticket to have one, and KV enough."""
    slots = stats.placed_since + ahead.tickets + 1 - (stats.slots - stats.leases)
    if not stats.leased_tokens or not stats.leases:
        return slots
    mean = stats.leased_tokens / stats.leases
    return max(slots, stats.placed_since + (ahead.reserved_tokens + demand.tokens - stats.free_tokens) / mean)


def _time_to_slot(steps: StepCosts, curve: ReleaseCurve, ahead: WorkAhead, count: float) -> tuple[float, float]:
    """Return the s until so many slots have fallen free, and the prompt tokens of a worker not done by then."""
    decoding = curve.time_of(count)
    prompts = (steps.pending_prefill_tokens + ahead.prompt_tokens) / steps.workers
    done = min(prompts, steps.budget_tokens * decoding / steps.decode_step_time)
    return decoding + steps.seconds_per_prefill_token * done, prompts - done


def _prefill_inflow(steps: StepCosts, curve: ReleaseCurve, ahead: WorkAhead, count: float) -> float:
    """Return the prompt tokens that come to a worker with each step while tickets wait."""
    if count <= 0 or not ahead.tickets:
        return 0.0
    took = curve.time_of(count + RATE_WINDOW_SLOTS) - curve.time_of(count)
    slots = RATE_WINDOW_SLOTS * steps.decode_step_time / took if took > 0 else 0.0
    return slots * ahead.prompt_tokens / ahead.tickets / steps.workers


def _prefill_time(
    steps: StepCosts,
    demand: TokenDemand,
    pending_tokens: float,
    inflow_tokens: float = 0.0,
    max_inflow_tokens: float = 0.0,
) -> float:
    """Return the s from a slot to the first token.

    In a worker's tokens, `left` of other prompts is not done by then, and `inflow` more come with each step, until
    there is no slot for more than `most`.
    """
    budget, prompt, shorter = steps.budget_tokens, demand.prompt_tokens, demand.share_of_shorter
    is_shared = pending_tokens > 0 and pending_tokens + prompt > budget
    share = 1 - OLDEST_PROMPT_BUDGET_SHARE * (1 - shorter) if is_shared else 1.0
    free = max(MIN_BUDGET_SHARE * budget, share * budget - shorter * inflow_tokens)
    needed = shorter * pending_tokens + prompt
    count = max(1, ceil(min(needed / free, (needed + shorter * max_inflow_tokens) / (share * budget))))
    beside = min(pending_tokens + prompt + min(inflow_tokens * (count - 1), max_inflow_tokens), count * budget)
    return count * steps.decode_step_time + steps.seconds_per_prefill_token * beside
