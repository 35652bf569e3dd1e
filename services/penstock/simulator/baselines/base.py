"""What an order without shards beside it makes of them, and of tenants inside their shares."""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from penstock.queue.ticket import QueuedTicket
from penstock.simulator.mesh.engine import SimRun


class SingleShardPolicy:
    def advance_virtual_time(self, priority: int, virtual_tokens: float) -> None:
        """Other shards are nothing to it."""

    def is_express(self, _: QueuedTicket) -> bool:
        return False


@runtime_checkable
class StepObserver(Protocol):
    def on_step(self, runs: Iterable[SimRun], step: int) -> None:
        """Hear which runs a worker had in the step that is just over, counted from 0; some may be other shards'."""
