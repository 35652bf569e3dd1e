"""Which models can be placed, and for how long tickets wait for one that cannot. Knows no ticket."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum

from penstock.chassis.own_time import OwnTime


class Verdict(Enum):
    """What becomes of a ticket for a model."""

    SERVED = "served"
    AWAITED = "awaited"  # gone for a moment, or not here yet: it may wait
    GONE = "gone"  # nothing has been served for too long
    UNKNOWN = "unknown"  # others are served, this one is not


@dataclass(slots=True)
class Presence:
    """Right after the start of a shard, and right after a scheduler or a last worker is lost, a model may be back at
    any moment: `warm_up` and `patience` say for how long that is believed. By the shard's `own_time`: one that stood
    still heard of nobody's return.
    """

    patience: float  # s
    warm_up: float  # s
    started_at: float
    served: AbstractSet[str] = frozenset()
    gone: dict[str, float] = field(default_factory=dict)  # model waited for: since when
    own_time: OwnTime = field(default_factory=OwnTime)
    _none_since: float | None = None

    def update(self, served: AbstractSet[str], now: float) -> None:
        ran = self.own_time.at(now)
        for model in self.served - served:
            self.gone[model] = ran
        for model in served:
            self.gone.pop(model, None)
        if self.served and not served:
            self._none_since = ran
        self.served = frozenset(served)

    def verdict(self, model: str, now: float) -> Verdict:
        """Tell what becomes of a ticket that comes now; a model that is awaited is awaited from now at the latest."""
        if model in self.served:
            return Verdict.SERVED
        ran = self.own_time.at(now)
        if model in self.gone:
            return Verdict.AWAITED if ran < self.gone[model] + self.patience else Verdict.GONE
        if ran < self.started_at + self.warm_up or (not self.served and ran < self._nothing_since + self.patience):
            self.gone[model] = ran
            return Verdict.AWAITED
        return Verdict.UNKNOWN if self.served else Verdict.GONE

    def await_again(self, model: str, now: float) -> None:
        """Note that a ticket is back which had been on its way to a worker."""
        if model not in self.served:
            self.gone.setdefault(model, self.own_time.at(now))

    def given_up(self, now: float) -> list[str]:
        """Return, once, the models that were waited for in vain; to be asked several times a second."""
        ran = self.own_time.at(now)
        lost = [model for model, since in self.gone.items() if ran >= since + self.patience]
        for model in lost:
            del self.gone[model]
        return lost

    @property
    def _nothing_since(self) -> float:
        return self.started_at if self._none_since is None else self._none_since
