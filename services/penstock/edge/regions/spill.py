"""Spill policy: which region a rejected request is offered to next. Pure; `now` is passed in.

What a region said holds for a time: after a rejection it is not offered requests of the same model and class that have
at least half as many tokens, for the time that the rejection names. A region whose stream is down is offered nothing.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from penstock.mesh.regions import is_region_allowed

MAX_OFFERS: Final = 2  # of one request, each to another region
MAX_REMEMBERED: Final = 1_024  # rejections of one region; the oldest are dropped first
RETRY_AFTER_RANGE_S: Final = (0.05, 30.0)  # for which a rejection is remembered
DEFAULT_RETRY_AFTER_S: Final = 5.0  # of a rejection that names no time, such as of an unknown model
HELD_SHARE: Final = 0.5  # of the tokens of a rejected request, from which requests are held back
MAX_WAITED_S: Final = 0.05  # s that a request may have waited at home, if its rejection is to be remembered
UNANSWERED_RETRY_S: Final = 1.0  # for which a region that has not answered an offer is not asked again
INITIAL_TRIP_S: Final = 0.1  # to a region and back, before an offer was answered
MAX_TRIP_S: Final = 5.0
TRIP_WEIGHT: Final = 0.1  # of an answer that took longer than the estimate; its queue may have caused the delay


class OfferClass(NamedTuple):
    """Requests that another region judges alike."""

    model: str  # key
    priority: int  # as granted


class Offer(NamedTuple):
    """A request that may be offered, as regions judge it."""

    kind: OfferClass
    tokens: int  # of its prompt, or a lower bound
    waited: float = 0.0  # s at home


class _Rejection(NamedTuple):
    """What a region said of a request, which holds for those of its class that are not much smaller."""

    until: float  # s
    tokens: int  # of its prompt


@dataclass(slots=True)
class _Region:
    """The state of one region, as its answers show it."""

    is_up: bool = False
    trip: float = INITIAL_TRIP_S  # s, there and back
    rejections: dict[OfferClass, _Rejection] = field(default_factory=dict)  # oldest first
    drained_until: float = -inf  # s

    def may_take(self, offer: Offer, now: float) -> bool:
        rejection = self.rejections.get(offer.kind)
        return (self.is_up and self.drained_until <= now) and (
            rejection is None or rejection.until <= now or offer.tokens < HELD_SHARE * rejection.tokens
        )


class SpillPolicy:
    """Regions in order of preference, with what is remembered of each.

    A request may leave only for regions that its tenant allows, as auth has stated them with its identity. `allowed` is
    empty if that are all.
    """

    def __init__(self, regions: Iterable[str], *, stay: Collection[int] = ()) -> None:
        """`stay`: priorities whose requests are not offered."""
        self._regions = {name: _Region() for name in regions}
        self._stay = frozenset(stay)

    def __repr__(self) -> str:
        up = [name for name, region in self._regions.items() if region.is_up]
        return f"<SpillPolicy {len(up)}/{len(self._regions)} regions up>"

    def can_spill(self, offer: Offer, allowed: Collection[str], now: float) -> bool:
        """Return whether a region may take a request at present."""
        return self.choose(offer, allowed, now=now) is not None

    def choose(
        self,
        offer: Offer,
        allowed: Collection[str],
        *,
        tried: Collection[str] = (),
        time_left: float = inf,
        now: float,
    ) -> str | None:
        """Return the region to offer a request to; None if it stays.

        tried: regions that this request was offered to. time_left: s until its deadline, which the trip must leave.
        """
        if offer.kind.priority in self._stay or len(tried) >= MAX_OFFERS:
            return None
        for name, region in self._regions.items():
            is_open = is_region_allowed(allowed, name) and name not in tried
            if is_open and region.trip < time_left and region.may_take(offer, now):
                return name
        return None

    def trip(self, region: str) -> float:
        """Return the estimated s to a region and back."""
        return self._regions[region].trip

    def on_up(self, region: str) -> None:
        """A stream to the region is connected. Another edge may be behind it, so that its rejections are forgotten."""
        self._regions[region] = _Region(is_up=True, trip=self._regions[region].trip)

    def on_down(self, region: str) -> None:
        self._regions[region].is_up = False

    def on_answer(self, region: str, took: float) -> None:
        """The region has answered an offer after `took` s."""
        state = self._regions[region]
        trip = took if took < state.trip else state.trip + TRIP_WEIGHT * (took - state.trip)
        state.trip = min(MAX_TRIP_S, max(0.0, trip))

    def on_rejected(self, region: str, offer: Offer, retry_after: float | None, now: float) -> None:
        """The region has rejected a request, and would reject larger ones for `retry_after` s, too.

        That of a request which had waited at home says nothing of others, which have more of their time left.
        """
        if offer.waited > MAX_WAITED_S:
            return
        remembered = self._regions[region].rejections
        remembered.pop(offer.kind, None)
        remembered[offer.kind] = _Rejection(now + _wait(retry_after), offer.tokens)
        if len(remembered) > MAX_REMEMBERED:
            del remembered[next(iter(remembered))]

    def on_drained(self, region: str, retry_after: float | None, now: float) -> None:
        """The region is drained, and would reject every request for `retry_after` s."""
        self._regions[region].drained_until = now + _wait(retry_after)

    def on_unanswered(self, region: str, kind: OfferClass, now: float) -> None:
        """The region has not answered an offer in time."""
        self.on_rejected(region, Offer(kind, 0), UNANSWERED_RETRY_S, now)


def _wait(retry_after: float | None) -> float:
    """Return the time in s for which a rejection is remembered."""
    low, high = RETRY_AFTER_RANGE_S
    return DEFAULT_RETRY_AFTER_S if retry_after is None else min(high, max(low, retry_after))
