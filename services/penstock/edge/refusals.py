"""What the queue has refused for load, and for how long the edge may say so itself to others of the same kind.

Exact by the figures of those refusals: what is refused here, the queue would have refused. When one is over there is
room for one more, and the first that comes is let through to take it: until that is answered the others would find
none, so only now and then another goes after it, however long answers take where all is busy. As figures change, one is
let through now and then while they stand as well, and what the queue says to it counts from there on. No I/O; `now`
comes in.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from penstock.chassis.errors import Overloaded

PROBE_EVERY = 0.1  # s; the end of an overload is noticed by then
HOLD = 0.04  # s between those that are let through once a refusal is over; the queue answers in a few ms
LULL = 0.08  # s in which none was let through, after which a refusal that is over is nothing to anybody
LATELY = 1.0  # s after which a refusal that is over says nothing of those who come
LONGEST = 1.0  # s that one refusal holds at most: a tenant may be given another class or weight meanwhile
KINDS = 10_000  # remembered; the least recently refused go first
SIZES = 8  # of one kind
SLACK = 0.005  # s; the same timeout comes as a little more or less, for the time it was on its way
ROUNDED = 0.01  # of a timeout; gRPC rounds it up to two or three digits, now to one and now to the next
SOONEST = 0.05  # s; what a refused client is told at least


class Kind(NamedTuple):
    """Who shares an order: what others are refused says nothing of one that differs in any of these."""

    tenant_id: str
    model: str
    priority: int  # as granted


class Ask(NamedTuple):
    """What a request asks for."""

    prompt: int  # tokens
    output: int
    arrived: float  # s of the unix clock
    time: float  # s that it has from there

    @property
    def deadline(self) -> float:
        return self.arrived + self.time


class Closing(NamedTuple):
    """For how long the queue takes nothing of a kind that asks for as much; it says so as it refuses or takes one."""

    lasts: float  # s from when a request came that it was told with
    prompt: int  # tokens
    output: int
    by_deadline: bool = False  # what has more time may be taken
    most: int = 0  # tokens of a prompt; longer ones may be taken. 0: however long


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refusal of the queue: it holds until its end for what asks for as much and is due no earlier."""

    ask: Ask
    until: float
    by_deadline: bool  # what has more time may be taken
    reason: str
    retry_at: float
    most: float = inf  # tokens of a prompt

    def holds_for(self, ask: Ask) -> bool:
        was = self.ask
        return (
            was.prompt <= ask.prompt <= self.most
            and ask.output >= was.output
            and ask.arrived + ask.time + ROUNDED * ask.time >= was.arrived + was.time
            and not (self.by_deadline and ask.time > was.time + SLACK)
        )

    def error(self, now: float) -> Overloaded:
        wait = max(SOONEST, self.retry_at - now)
        text = f"the queue takes no such request for the moment; retry in {wait:.2f} s"
        return Overloaded(text, reason=self.reason, retry_after=wait, metadata={"refused_by": "edge"})


@dataclass(slots=True)
class Closed:
    """What is known of one kind."""

    refusals: list[Refusal] = field(default_factory=list)  # oldest first
    heard_at: float = -inf  # when one was last refused by the queue, or let through to it
    trying: float = -inf  # when the last came that was let through as a refusal was over

    def stands(self, refusal: Refusal, arrived: float) -> bool:
        """Tell whether a refusal counts now; where it does not, whoever came is the one that is let through."""
        if arrived >= refusal.until:
            if arrived < self.trying + HOLD:
                return True
            if arrived < max(refusal.until, self.trying) + LULL:
                self.trying = arrived
        elif arrived >= self.heard_at + PROBE_EVERY:
            self.heard_at = arrived
        else:
            return True
        return False


class Refusals:
    """Of the queue, by kind; bounded in number."""

    def __init__(self, *, kinds: int = KINDS) -> None:
        self._most = kinds
        self._kinds: OrderedDict[Kind, Closed] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kinds)

    def __repr__(self) -> str:
        return f"<Refusals of {len(self)} kinds>"

    def note(self, kind: Kind, refusal: Refusal, now: float) -> None:
        """Hear of a refusal; those that it covers, and those that are over, are forgotten."""
        closed = self._kinds.setdefault(kind, Closed())
        self._kinds.move_to_end(kind)
        if len(self._kinds) > self._most:
            self._kinds.popitem(last=False)
        kept = [each for each in closed.refusals if each.until > now and not _covers(refusal, each)]
        closed.refusals = [*kept, refusal][-SIZES:]
        closed.heard_at = now

    def find(self, kind: Kind, ask: Ask) -> Refusal | None:
        """Return why a request that comes now is refused; None: ask the queue."""
        closed = self._kinds.get(kind)
        if closed is None or ask.arrived in (closed.heard_at, closed.trying):  # let through a moment ago
            return None
        found = None
        for each in closed.refusals:
            if (found is None or each.until > found.until) and each.holds_for(ask):
                found = each
        return found if found and closed.stands(found, ask.arrived) else None

    def were_any(self, kind: Kind, now: float) -> bool:
        """Tell whether any of a kind was refused of late, whatever it asked for."""
        closed = self._kinds.get(kind)
        return closed is not None and any(now < each.until + LATELY for each in closed.refusals)

    def taken(self, kind: Kind, ask: Ask) -> None:
        """Hear that the queue took one in: what would have refused it holds no more."""
        if closed := self._kinds.get(kind):
            closed.refusals = [each for each in closed.refusals if not each.holds_for(ask)]
            if not closed.refusals:
                del self._kinds[kind]

    def closed(
        self, kind: Kind, ask: Ask, closings: Iterable[Closing], *, asked_at: float, told: Overloaded | None, now: float
    ) -> None:
        """Hear for whom the door is shut; with a refusal that was `told`, or behind a request that was taken in."""
        for each in closings:
            like = ask._replace(prompt=each.prompt, output=each.output)
            error = told or Overloaded("", retry_after=each.lasts)
            self.note(kind, refusal_of(like, each, asked_at=asked_at, told=error, now=now), now)


def refusal_of(ask: Ask, closing: Closing, *, asked_at: float, told: Overloaded, now: float) -> Refusal:
    """What is kept of what the queue says; it was asked no earlier than at `asked_at`."""
    until = ask.arrived + closing.lasts - SLACK if closing.by_deadline else asked_at + closing.lasts
    until = min(until, asked_at + LONGEST)
    return Refusal(ask, until, closing.by_deadline, told.reason, now + (told.retry_after or 0.0), closing.most or inf)


def _covers(newer: Refusal, older: Refusal) -> bool:
    """Tell whether the older is of no more use, as others are due later the later they come."""
    return (
        newer.until >= older.until
        and newer.ask.prompt <= older.ask.prompt
        and newer.most >= older.most
        and newer.ask.output <= older.ask.output
        and newer.by_deadline <= older.by_deadline
    )
