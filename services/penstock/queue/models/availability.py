"""Which models can be placed, and for how long tickets wait for one that cannot. Knows no ticket."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum

from penstock.chassis.clocks import StallFreeClock


class Availability(Enum):
    """What becomes of a ticket for a model."""

    SERVED = "served"
    AWAITED = "awaited"  # gone for a moment, or not here yet: it may wait
    UNAVAILABLE = "gone"  # nothing has been served for too long
    UNKNOWN = "unknown"  # others are served, this one is not


@dataclass(slots=True)
class ModelAvailability:
    """Right after the start of a shard, and right after a scheduler or a last worker is lost, a model may be back at
    any moment: `warm_up` and `patience` say for how long that is believed. By the shard's `own_time`: one that stood
    still heard of nobody's return.
    """

    timeout: float  # s
    warm_up: float  # s
    started_at: float
    served_models: AbstractSet[str] = frozenset()
    awaited_since: dict[str, float] = field(default_factory=dict)  # model waited for: since when
    clock: StallFreeClock = field(default_factory=StallFreeClock)
    _last_model_lost_at: float | None = None

    def update(self, served: AbstractSet[str], now: float) -> None:
        ran = self.clock.at(now)
        for model in self.served_models - served:
            self.awaited_since[model] = ran
        for model in served:
            self.awaited_since.pop(model, None)
        if self.served_models and not served:
            self._last_model_lost_at = ran
        self.served_models = frozenset(served)

    def availability_of(self, model: str, now: float) -> Availability:
        """Tell what becomes of a ticket that comes now; a model that is awaited is awaited from now at the latest."""
        if model in self.served_models:
            return Availability.SERVED
        ran = self.clock.at(now)
        if model in self.awaited_since:
            return Availability.AWAITED if ran < self.awaited_since[model] + self.timeout else Availability.UNAVAILABLE
        if ran < self.started_at + self.warm_up or (
            not self.served_models and ran < self._unserved_since + self.timeout
        ):
            self.awaited_since[model] = ran
            return Availability.AWAITED
        return Availability.UNKNOWN if self.served_models else Availability.UNAVAILABLE

    def await_model(self, model: str, now: float) -> None:
        """Note that a ticket is back which had been on its way to a worker."""
        if model not in self.served_models:
            self.awaited_since.setdefault(model, self.clock.at(now))

    def pop_timed_out(self, now: float) -> list[str]:
        """Return, once, the models that were waited for in vain; to be asked several times a second."""
        ran = self.clock.at(now)
        lost = [model for model, since in self.awaited_since.items() if ran >= since + self.timeout]
        for model in lost:
            del self.awaited_since[model]
        return lost

    @property
    def _unserved_since(self) -> float:
        return self.started_at if self._last_model_lost_at is None else self._last_model_lost_at
