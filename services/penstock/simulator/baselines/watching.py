"""An order that is told of every step of every worker as it ends, which no mesh can do."""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from penstock.simulator.mesh.engine import Run


@runtime_checkable
class WatchesSteps(Protocol):
    def stepped(self, runs: Iterable[Run], step: int) -> None:
        """Hear which runs a worker had in the step that is just over, counted from 0; some may be other shards'."""
