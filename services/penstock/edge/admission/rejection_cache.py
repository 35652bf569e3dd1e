"""Rejection cache: the rejection windows that the queue has sent, by traffic class. No I/O; `now` is passed in.

A request that matches a window is rejected by the edge, because the queue would reject it as well. During a window one
request per `PROBE_INTERVAL_S` is let through, so that the edge receives the queue's present state. When a window ends,
the queue has room for about one request: one is let through per `RECOVERY_PROBE_INTERVAL_S` until the queue admits one.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from penstock.chassis.errors import Overloaded

PROBE_INTERVAL_S = 0.1  # longest time until the end of an overload is detected
RECOVERY_PROBE_INTERVAL_S = 0.04  # between requests that are let through after a window; the queue answers in a few ms
RECOVERY_IDLE_S = 0.08  # time without such a request after which an ended window has no further effect
MAX_REJECTION_TTL_S = 1.0  # longest validity of a window, because the tenant's class or weight may change
MAX_TRAFFIC_CLASSES = 10_000  # the least recently rejected ones are evicted first
MAX_REJECTIONS_PER_CLASS = 8
TIMEOUT_JITTER_S = 0.005  # difference of equal timeouts through their time on the network
TIMEOUT_ROUNDING_SHARE = 0.01  # of a timeout, which gRPC rounds up to two or three digits
MIN_RETRY_AFTER_S = 0.05


class TrafficClass(NamedTuple):
    """Requests that the queue orders together. A rejection applies within one traffic class."""

    tenant_id: str
    model: str  # key
    priority: int  # as granted


class RequestDemand(NamedTuple):
    """Demand of a request."""

    prompt_tokens: int  # tokens
    max_output_tokens: int
    arrived_at: float  # Unix time, s
    time_limit: float  # s from the arrival

    @property
    def deadline(self) -> float:
        return self.arrived_at + self.time_limit


class RejectionWindow(NamedTuple):
    """Sizes and duration for which the queue rejects requests of a traffic class, as sent with its responses."""

    duration: float  # s from the arrival of the request that it answers
    min_prompt_tokens: int  # tokens
    min_output_tokens: int
    is_deadline_bound: bool = False  # requests with a longer time limit may be admitted
    max_prompt_tokens: int = 0  # longer prompts may be admitted; 0 if no limit applies


@dataclass(frozen=True, slots=True)
class CachedRejection:
    """One rejection of the queue. Until it expires it matches requests of at least its size and no earlier deadline."""

    demand: RequestDemand
    expires_at: float
    is_deadline_bound: bool  # requests with a longer time limit may be admitted
    reason: str
    retry_at: float
    max_prompt_tokens: float = inf

    def matches(self, demand: RequestDemand) -> bool:
        rejected = self.demand
        return (
            rejected.prompt_tokens <= demand.prompt_tokens <= self.max_prompt_tokens
            and demand.max_output_tokens >= rejected.max_output_tokens
            and demand.deadline + TIMEOUT_ROUNDING_SHARE * demand.time_limit >= rejected.deadline
            and not (self.is_deadline_bound and demand.time_limit > rejected.time_limit + TIMEOUT_JITTER_S)
        )

    def to_error(self, now: float) -> Overloaded:
        wait = max(MIN_RETRY_AFTER_S, self.retry_at - now)
        text = f"the queue rejects such requests at present; retry in {wait:.2f} s"
        return Overloaded(text, reason=self.reason, retry_after=wait, metadata={"rejected_by": "edge"})


@dataclass(slots=True)
class CacheEntry:
    """Rejections of one traffic class."""

    rejections: list[CachedRejection] = field(default_factory=list)  # oldest first
    last_probe_at: float = -inf  # when a request was last rejected by the queue or let through
    recovery_probe_at: float = -inf  # arrival of the last request that was let through after a window

    def should_reject(self, rejection: CachedRejection, arrived_at: float) -> bool:
        """Return whether to reject a request. If not, records the request as the one that is let through."""
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
    """Rejections of the queue by traffic class, bounded in number."""

    def __init__(self, *, max_classes: int = MAX_TRAFFIC_CLASSES) -> None:
        self._max_classes = max_classes
        self._entries: OrderedDict[TrafficClass, CacheEntry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<RejectionCache of {len(self)} classes>"

    def add(self, traffic_class: TrafficClass, rejection: CachedRejection, now: float) -> None:
        """Add a rejection. Expired rejections and those that it covers are removed."""
        entry = self._entries.setdefault(traffic_class, CacheEntry())
        self._entries.move_to_end(traffic_class)
        if len(self._entries) > self._max_classes:
            self._entries.popitem(last=False)
        kept = [each for each in entry.rejections if each.expires_at > now and not _covers(rejection, each)]
        entry.rejections = [*kept, rejection][-MAX_REJECTIONS_PER_CLASS:]
        entry.last_probe_at = now

    def find(self, traffic_class: TrafficClass, demand: RequestDemand) -> CachedRejection | None:
        """Return the rejection of a request, or None if the queue decides."""
        entry = self._entries.get(traffic_class)
        if entry is None or demand.arrived_at in (entry.last_probe_at, entry.recovery_probe_at):
            return None  # this request was let through before
        found = None
        for each in entry.rejections:
            if (found is None or each.expires_at > found.expires_at) and each.matches(demand):
                found = each
        return found if found and entry.should_reject(found, demand.arrived_at) else None

    def on_admitted(self, traffic_class: TrafficClass, demand: RequestDemand) -> None:
        """Remove the rejections that match a request which the queue has admitted."""
        if entry := self._entries.get(traffic_class):
            entry.rejections = [each for each in entry.rejections if not each.matches(demand)]
            if not entry.rejections:
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
        """Add the windows of a rejection with its `overload`, or of an admitted request without one."""
        for each in windows:
            like = demand._replace(prompt_tokens=each.min_prompt_tokens, max_output_tokens=each.min_output_tokens)
            error = overload or Overloaded("", retry_after=each.duration)
            self.add(traffic_class, cached_rejection(like, each, sent_at=sent_at, overload=error, now=now), now)


def cached_rejection(
    demand: RequestDemand, window: RejectionWindow, *, sent_at: float, overload: Overloaded, now: float
) -> CachedRejection:
    """Return the rejection to cache for a window. The queue decided no earlier than at `sent_at`."""
    expires_at = (
        demand.arrived_at + window.duration - TIMEOUT_JITTER_S
        if window.is_deadline_bound
        else sent_at + window.duration
    )
    expires_at = min(expires_at, sent_at + MAX_REJECTION_TTL_S)
    return CachedRejection(
        demand,
        expires_at,
        window.is_deadline_bound,
        overload.reason,
        now + (overload.retry_after or 0.0),
        window.max_prompt_tokens or inf,
    )


def _covers(newer: CachedRejection, older: CachedRejection) -> bool:
    """Return whether `newer` matches every later request that `older` matches, and expires no earlier."""
    return (
        newer.expires_at >= older.expires_at
        and newer.demand.prompt_tokens <= older.demand.prompt_tokens
        and newer.max_prompt_tokens >= older.max_prompt_tokens
        and newer.demand.max_output_tokens <= older.demand.max_output_tokens
        and newer.is_deadline_bound <= older.is_deadline_bound
    )
