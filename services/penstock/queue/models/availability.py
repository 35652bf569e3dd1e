"""Availability of models: the models that schedulers serve, and how long tickets wait for a model that is lost."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum

from penstock.chassis.clocks import StallFreeClock


class Availability(Enum):
    """Availability of a model. Tickets are admitted if it is served or awaited."""

    SERVED = "served"
    AWAITED = "awaited"  # lost a moment ago or not reported yet: tickets may wait for it
    UNAVAILABLE = "gone"  # not served for longer than the timeout
    UNKNOWN = "unknown"  # other models are served, this one is not


@dataclass(slots=True)
class ModelAvailability:
    """Models that are served, and models that are awaited after the start of the shard or after a loss.

    Times exclude stalls of this process, during which it receives no catalog.
    """

    timeout: float  # s for which a lost model is awaited
    warm_up: float  # s after the start for which every model is awaited
    started_at: float
    served_models: AbstractSet[str] = frozenset()
    awaited_since: dict[str, float] = field(default_factory=dict)  # s of the stall-free clock, by model
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
        """Return the availability of a model for a ticket that arrives now. An awaited model is awaited from now on."""
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
        """Await the model of a ticket whose offer was returned."""
        if model not in self.served_models:
            self.awaited_since.setdefault(model, self.clock.at(now))

    def pop_timed_out(self, now: float) -> list[str]:
        """Return, once each, the awaited models whose timeout has passed. Called with each tick."""
        ran = self.clock.at(now)
        lost = [model for model, since in self.awaited_since.items() if ran >= since + self.timeout]
        for model in lost:
            del self.awaited_since[model]
        return lost

    def is_timing(self, now: float) -> bool:
        """Whether a timeout runs, so that the clock must be read often."""
        ran = self.clock.at(now)
        return bool(
            self.awaited_since
            or ran < self.started_at + self.warm_up
            or (not self.served_models and ran < self._unserved_since + self.timeout)
        )

    @property
    def _unserved_since(self) -> float:
        return self.started_at if self._last_model_lost_at is None else self._last_model_lost_at
