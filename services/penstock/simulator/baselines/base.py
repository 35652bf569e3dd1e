"""Base classes of baseline policies."""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from penstock.queue.policies.policy import ClassBacklog
from penstock.queue.ticket import QueuedTicket
from penstock.simulator.mesh.engine import SimRun


class SingleShardPolicy:
    """A policy without virtual times of other shards and without express tickets."""

    def advance_virtual_time(self, priority: int, virtual_tokens: float) -> None:
        """Ignore the virtual times of other shards."""

    def is_express(self, _: QueuedTicket) -> bool:
        return False

    def class_backlog(self, _: int) -> ClassBacklog:
        """Return nothing: other shards do not wait for these tickets."""
        return ClassBacklog(0)


@runtime_checkable
class StepObserver(Protocol):
    """A policy that is notified of every step of every worker."""

    def on_step(self, runs: Iterable[SimRun], step: int) -> None:
        """Called after step `step`, from 0, of a worker, with its runs, some of which may belong to other shards."""
