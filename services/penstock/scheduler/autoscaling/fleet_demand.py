"""Fleet demand: the number of workers per model that all queue shards together need. Pure.

Every scheduler receives the same reports of the same shards, so every scheduler returns the same numbers. A number that
lacks a shard would scale workers down below the work that waits there; the scheduler returns an error instead.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.chassis.errors import Unavailable
from penstock.mesh.v1.queue_pb2 import Demand

MAX_DEMAND_AGE_S = 5.0  # s; shards report once a second
NOTHING_NEEDED = (0.0, 0.0, 0.0)


class ShardReport(NamedTuple):
    """The latest report of one shard."""

    received_at: float  # s
    needed_by_model: Mapping[str, tuple[float, float, float]]  # workers by slots, by tokens and by prefill, by name


@dataclass(slots=True)
class FleetDemand:
    """The reports of all shards. A shard is named by the address at which the scheduler expects it."""

    on_changed: Callable[[], None] = lambda: None  # called after each change
    _shards: dict[str, ShardReport | None] = field(default_factory=dict)  # None: no report on the present stream

    def on_shard_added(self, address: str) -> None:
        self._shards.setdefault(address, None)

    def on_shard_lost(self, address: str) -> None:
        """The stream to a shard is lost. Its work is unknown until its next report."""
        if address in self._shards:
            self._shards[address] = None
            self.on_changed()

    def on_shard_removed(self, address: str) -> None:
        """The address was removed from the configuration or from DNS, or another address leads to the same shard."""
        self._shards.pop(address, None)
        self.on_changed()

    def on_demand(self, address: str, demand: Demand, now: float) -> None:
        needed = {each.model: (each.by_slots, each.by_tokens, each.by_prefill) for each in demand.models}
        self._shards[address] = ShardReport(now, needed)
        self.on_changed()

    def workers(self, model: str, now: float) -> float:
        """Return the workers that a model needs, as a fraction that the caller rounds up.

        0 if every shard has reported and none has work for the model. Raises Unavailable / DEMAND_UNKNOWN.
        """
        needed = [each.needed_by_model.get(model, NOTHING_NEEDED) for each in self._fresh_reports(now)]
        return max(sum(each[way] for each in needed) for way in range(len(NOTHING_NEEDED)))

    def _fresh_reports(self, now: float) -> list[ShardReport]:
        if not self._shards:
            raise Unavailable("no address of a queue shard is known", reason="DEMAND_UNKNOWN", retry_after=1.0)
        reports = [each for each in self._shards.values() if each and now - each.received_at <= MAX_DEMAND_AGE_S]
        if silent := len(self._shards) - len(reports):
            text = f"{silent} of {len(self._shards)} queue shards do not report their demand"
            raise Unavailable(text, reason="DEMAND_UNKNOWN", retry_after=1.0)
        return reports
