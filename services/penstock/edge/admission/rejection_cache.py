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

PROBE_INTERVAL_S = 0.1  # s; the end of an overload is noticed by then
RECOVERY_PROBE_INTERVAL_S = (
    0.04  # s between those that are let through once a refusal is over; the queue answers in a few ms
)
RECOVERY_IDLE_S = 0.08  # s in which none was let through, after which a refusal that is over is nothing to anybody
MAX_REJECTION_TTL_S = 1.0  # s that one refusal holds at most: a tenant may be given another class or weight meanwhile
MAX_TRAFFIC_CLASSES = 10_000  # remembered; the least recently refused go first
MAX_REJECTIONS_PER_CLASS = 8  # of one kind
TIMEOUT_JITTER_S = 0.005  # s; the same timeout comes as a little more or less, for the time it was on its way
TIMEOUT_ROUNDING_SHARE = 0.01  # of a timeout; gRPC rounds it up to two or three digits, now to one and now to the next
MIN_RETRY_AFTER_S = 0.05  # s; what a refused client is told at least


class TrafficClass(NamedTuple):
    """Who shares an order: what others are refused says nothing of one that differs in any of these."""

    tenant_id: str
    model: str
    priority: int  # as granted


class RequestDemand(NamedTuple):
    """What a request asks for."""

    prompt_tokens: int  # tokens
    max_output_tokens: int
    arrived_at: float  # s of the unix clock
    time_limit: float  # s that it has from there

    @property
    def deadline(self) -> float:
        return self.arrived_at + self.time_limit


class RejectionWindow(NamedTuple):
    """For how long the queue takes nothing of a kind that asks for as much; it says so as it refuses or takes one."""

    duration: float  # s from when a request came that it was told with
    min_prompt_tokens: int  # tokens
    min_output_tokens: int
    is_deadline_bound: bool = False  # what has more time may be taken
    max_prompt_tokens: int = 0  # tokens of a prompt; longer ones may be taken. 0: however long


@dataclass(frozen=True, slots=True)
class CachedRejection:
    """One refusal of the queue: it holds until its end for what asks for as much and is due no earlier."""

    demand: RequestDemand
    expires_at: float
    is_deadline_bound: bool  # what has more time may be taken
    reason: str
    retry_at: float
    max_prompt_tokens: float = inf  # tokens of a prompt

    def matches(self, demand: RequestDemand) -> bool:
        was = self.demand
        return (
            was.prompt_tokens <= demand.prompt_tokens <= self.max_prompt_tokens
            and demand.max_output_tokens >= was.max_output_tokens
            and demand.arrived_at + demand.time_limit + TIMEOUT_ROUNDING_SHARE * demand.time_limit
            >= was.arrived_at + was.time_limit
            and not (self.is_deadline_bound and demand.time_limit > was.time_limit + TIMEOUT_JITTER_S)
        )

    def to_error(self, now: float) -> Overloaded:
        wait = max(MIN_RETRY_AFTER_S, self.retry_at - now)
        text = f"the queue takes no such request for the moment; retry in {wait:.2f} s"
        return Overloaded(text, reason=self.reason, retry_after=wait, metadata={"rejected_by": "edge"})


@dataclass(slots=True)
class CacheEntry:
    """What is known of one kind."""

    rejections: list[CachedRejection] = field(default_factory=list)  # oldest first
    last_probe_at: float = -inf  # when one was last refused by the queue, or let through to it
    recovery_probe_at: float = -inf  # when the last came that was let through as a refusal was over

    def should_reject(self, rejection: CachedRejection, arrived_at: float) -> bool:
        """Tell whether a refusal counts now; where it does not, whoever came is the one that is let through."""
        if arrived_at >= rejection.expires_at:
            if arrived_at < self.recovery_probe_at + RECOVERY_PROBE_INTERVAL_S:
                return True
            if arrived_at < max(rejection.expires_at, self.recovery_probe_at) + RECOVERY_IDLE_S:
                self.recovery_probe_at = arrived_at
        elif arrived_at >= self.last_probe_at + PROBE_INTERVAL_S:
            self.last_probe_at = arrived_at
        else:
            return True
        return False


class RejectionCache:
    """Of the queue, by kind; bounded in number."""

    def __init__(self, *, max_classes: int = MAX_TRAFFIC_CLASSES) -> None:
        self._max_classes = max_classes
        self._entries: OrderedDict[TrafficClass, CacheEntry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<Refusals of {len(self)} kinds>"

    def add(self, traffic_class: TrafficClass, rejection: CachedRejection, now: float) -> None:
        """Hear of a refusal; those that it covers, and those that are over, are forgotten."""
        closed = self._entries.setdefault(traffic_class, CacheEntry())
        self._entries.move_to_end(traffic_class)
        if len(self._entries) > self._max_classes:
            self._entries.popitem(last=False)
        kept = [each for each in closed.rejections if each.expires_at > now and not _covers(rejection, each)]
        closed.rejections = [*kept, rejection][-MAX_REJECTIONS_PER_CLASS:]
        closed.last_probe_at = now

    def find(self, traffic_class: TrafficClass, demand: RequestDemand) -> CachedRejection | None:
        """Return why a request that comes now is refused; None: ask the queue."""
        closed = self._entries.get(traffic_class)
        if closed is None or demand.arrived_at in (
            closed.last_probe_at,
            closed.recovery_probe_at,
        ):  # let through a moment ago
            return None
        found = None
        for each in closed.rejections:
            if (found is None or each.expires_at > found.expires_at) and each.matches(demand):
                found = each
        return found if found and closed.should_reject(found, demand.arrived_at) else None

    def on_admitted(self, traffic_class: TrafficClass, demand: RequestDemand) -> None:
        """Hear that the queue took one in: what would have refused it holds no more."""
        if closed := self._entries.get(traffic_class):
            closed.rejections = [each for each in closed.rejections if not each.matches(demand)]
            if not closed.rejections:
                del self._entries[traffic_class]

    def add_windows(
        self,
        traffic_class: TrafficClass,
        demand: RequestDemand,
        windows: Iterable[RejectionWindow],
        *,
        sent_at: float,
        overload: Overloaded | None,
        now: float,
    ) -> None:
        """Hear for whom the door is shut; with a refusal that was `told`, or behind a request that was taken in."""
        for each in windows:
            like = demand._replace(prompt_tokens=each.min_prompt_tokens, max_output_tokens=each.min_output_tokens)
            error = overload or Overloaded("", retry_after=each.duration)
            self.add(traffic_class, cached_rejection(like, each, sent_at=sent_at, overload=error, now=now), now)


def cached_rejection(
    demand: RequestDemand, window: RejectionWindow, *, sent_at: float, overload: Overloaded, now: float
) -> CachedRejection:
    """What is kept of what the queue says; it was asked no earlier than at `asked_at`."""
    until = (
        demand.arrived_at + window.duration - TIMEOUT_JITTER_S
        if window.is_deadline_bound
        else sent_at + window.duration
    )
    until = min(until, sent_at + MAX_REJECTION_TTL_S)
    return CachedRejection(
        demand,
        until,
        window.is_deadline_bound,
        overload.reason,
        now + (overload.retry_after or 0.0),
        window.max_prompt_tokens or inf,
    )


def _covers(newer: CachedRejection, older: CachedRejection) -> bool:
    """Tell whether the older is of no more use, as others are due later the later they come."""
    return (
        newer.expires_at >= older.expires_at
        and newer.demand.prompt_tokens <= older.demand.prompt_tokens
        and newer.max_prompt_tokens >= older.max_prompt_tokens
        and newer.demand.max_output_tokens <= older.demand.max_output_tokens
        and newer.is_deadline_bound <= older.is_deadline_bound
    )
