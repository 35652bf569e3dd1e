"""Counts of the tickets that a shard has leased and shed."""

from dataclasses import dataclass, field

from penstock.chassis.errors import PenstockError


@dataclass(slots=True)
class ShardCounters:
    """Leased and shed tickets."""

    leased: int = 0
    leased_by_model: dict[str, int] = field(default_factory=dict)
    shed: dict[str, int] = field(default_factory=dict)  # tickets by reason
    shed_by_class: dict[tuple[int, str], int] = field(default_factory=dict)  # by priority and reason

    def record_lease(self, model: str) -> None:
        self.leased += 1
        self.leased_by_model[model] = self.leased_by_model.get(model, 0) + 1

    def record_shed(self, priority: int, error: PenstockError) -> None:
        self.shed[error.reason] = self.shed.get(error.reason, 0) + 1
        key = priority, error.reason
        self.shed_by_class[key] = self.shed_by_class.get(key, 0) + 1
