"""An order that is told of every step of every worker as it ends, which no mesh can do."""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from penstock.simulator.mesh.engine import SimRun


@runtime_checkable
class StepObserver(Protocol):
    def on_step(self, runs: Iterable[SimRun], step: int) -> None:
        """Hear which runs a worker had in the step that is just over, counted from 0; some may be other shards'."""
