"""When a ticket will have its lease and its first token, from when slots fall free and what a step takes.

A step takes `decode_step` and `prefill_token` more for each prompt token in it, so the time to a step is its number
times the one and what was prefilled until then times the other. A ticket with n before it gets the slot that falls free
as the (n+1)th; until then the prompts of all before it are computed, as far as the steps' budgets hold them.
From there on its own worker splits each step's budget: short prompts pass long ones, but for a share of the oldest.
"""

from dataclasses import dataclass
from math import ceil, inf
from typing import NamedTuple

from penstock.queue.curve import Curve
from penstock.queue.speed import Speed

OLDEST = 0.25  # of a step's budget, which workers keep for the prompt that came first, however long it is
LEAST = 1 / 8  # of the budget that is taken to be left to a prompt, whatever passes it
KEEPS = 0.5  # of what comes of late, that is taken to go on
AHEAD = 8  # slots that are looked at to tell how fast they fall free


class Line(NamedTuple):
    """What goes before a ticket."""

    tickets: float = 0.0
    work: float = 0.0  # tokens, prompt and predicted output
    prompts: float = 0.0  # tokens
    tokens: float = 0.0  # prompt and output, as they are promised

    @property
    def answer(self) -> float:
        """Return the tokens of an answer as predicted, in the mean; 0: nothing is before it."""
        return max(1.0, (self.work - self.prompts) / self.tickets) if self.tickets >= 1 else 0.0


class Ask(NamedTuple):
    """What a ticket asks for, in tokens."""

    prompt: int
    tokens: int  # prompt and output
    share_of_shorter: float  # of all prompt tokens, in prompts shorter than its own


class Arrivals(NamedTuple):
    """What comes while a ticket waits."""

    elapsed: float  # s since the report
    inflow: float  # prompt tokens per second that go to workers of late
    prompt: float  # tokens, mean of prompts


class Steps(NamedTuple):
    """What steps are like, and what they have before them."""

    budget: float  # prompt tokens of one
    decode: float  # s of one that prefills nothing
    token: float  # s by which a prompt token makes one longer
    full: float  # s of one that spends its budget
    workers: int
    pending: float  # prompt tokens, on all workers


class Outlook(NamedTuple):
    """In s from now, at least 0."""

    wait: float  # to the lease
    first_token: float
    waits: bool  # for a slot, and not only for its prompt
    undisturbed: float  # to the first token, if nobody comes after it
    takes: float  # by which its prompt delays those that it passes, from its lease on


@dataclass(slots=True)
class Slot:
    """When a ticket has a slot, and what there is to prefill beside its prompt from then on, in tokens of a worker."""

    wait: float  # s from now, to the lease
    at: float  # s from now, at least 0
    left: float  # of prompts that came before it
    inflow: float  # of others, that come with each step
    most: float  # of these, until there is no slot for more


class Moment:
    """What tickets may expect that are asked about at one time, by a report that has a law.

    When a slot comes is worked out once for all that wait for the same one, whatever their prompts.
    """

    __slots__ = ("_arrivals", "_slots", "_speed", "_steps")

    def __init__(self, speed: Speed, arrivals: Arrivals) -> None:
        self._speed = speed
        self._arrivals = arrivals
        self._steps = _steps(speed)
        self._slots: dict[tuple[Curve, Line, float], Slot] = {}

    def outlook(self, curve: Curve, line: Line, ask: Ask) -> Outlook:
        """`curve`: when slots fall free from the report on, beside `line`."""
        steps, count = self._steps, _releases(self._speed, line, ask)
        slot = self._slots.get((curve, line, count))
        if slot is None:
            slot = self._slots[curve, line, count] = self._slot(curve, line, count)
        first = slot.at + _own(steps, ask, slot.left, slot.inflow, slot.most)
        alone = slot.at + _own(steps, ask, slot.left) if slot.inflow else first
        takes = steps.full * ask.prompt / steps.budget / steps.workers
        return Outlook(slot.wait, first, count > 0, alone, takes)

    def _slot(self, curve: Curve, line: Line, count: float) -> Slot:
        speed, steps, arrivals = self._speed, self._steps, self._arrivals
        # Leases that wait at a worker for the next slot.
        ahead_of_slots = max(0, speed.room + speed.leases - speed.slots)
        wait, left = _reach(steps, curve, line, count - ahead_of_slots)
        at = wait
        if ahead_of_slots:
            at, left = _reach(steps, curve, line, count)
        wait, at = max(0.0, wait - arrivals.elapsed), at - arrivals.elapsed
        if at < 0:
            left = max(0.0, left + at * steps.budget / steps.full)
        if count > 0:
            return Slot(wait, max(0.0, at), left, _inflow(steps, curve, line, count), inf)
        at = max(0.0, at) + (speed.step_time / 2 if speed.leases else 0.0)  # a step is under way
        inflow = KEEPS * arrivals.inflow * steps.full / steps.workers
        return Slot(wait, at, left, inflow, -count * arrivals.prompt / steps.workers)


def _steps(speed: Speed) -> Steps:
    workers = max(1, speed.workers)
    budget = max(1.0, speed.step_tokens - min(speed.leases, speed.slots) / workers)
    decode, token = speed.decode_step, speed.prefill_token
    return Steps(budget, decode, token, decode + token * budget, workers, speed.pending_prefill)


def _releases(speed: Speed, line: Line, ask: Ask) -> float:
    """Return how many slots have to fall free for a ticket to have one, and KV enough."""
    slots = speed.placed + line.tickets + 1 - (speed.slots - speed.leases)
    if not speed.held_tokens or not speed.leases:
        return slots
    mean = speed.held_tokens / speed.leases
    return max(slots, speed.placed + (line.tokens + ask.tokens - speed.free_tokens) / mean)


def _reach(steps: Steps, curve: Curve, line: Line, count: float) -> tuple[float, float]:
    """Return the s until so many slots have fallen free, and the prompt tokens of a worker not done by then."""
    decoding = curve.time_of(count)
    prompts = (steps.pending + line.prompts) / steps.workers
    done = min(prompts, steps.budget * decoding / steps.decode)
    return decoding + steps.token * done, prompts - done


def _inflow(steps: Steps, curve: Curve, line: Line, count: float) -> float:
    """Return the prompt tokens that come to a worker with each step while tickets wait."""
    if count <= 0 or not line.tickets:
        return 0.0
    took = curve.time_of(count + AHEAD) - curve.time_of(count)
    slots = AHEAD * steps.decode / took if took > 0 else 0.0
    return slots * line.prompts / line.tickets / steps.workers


def _own(steps: Steps, ask: Ask, left: float, inflow: float = 0.0, most: float = 0.0) -> float:
    """Return the s from a slot to the first token.

    In a worker's tokens, `left` of other prompts is not done by then, and `inflow` more come with each step, until
    there is no slot for more than `most`.
    """
    budget, prompt, shorter = steps.budget, ask.prompt, ask.share_of_shorter
    is_shared = left > 0 and left + prompt > budget
    share = 1 - OLDEST * (1 - shorter) if is_shared else 1.0
    free = max(LEAST * budget, share * budget - shorter * inflow)
    needed = shorter * left + prompt
    count = max(1, ceil(min(needed / free, (needed + shorter * most) / (share * budget))))
    beside = min(left + prompt + min(inflow * (count - 1), most), count * budget)
    return count * steps.decode + steps.token * beside
