"""The peers of simulated edges, as a protocol."""

from typing import Protocol

from penstock.mesh.v1 import batch_pb2 as pb
from penstock.queue.ticket import QueuedTicket
from penstock.simulator.mesh.engine import SimRun
from penstock.simulator.mesh.worker import SimWorker


class EdgePeers(Protocol):
    """The peers of edges, which receive each frame after the link delay."""

    def enqueue(self, ticket: QueuedTicket) -> None: ...

    def withdraw(self, ticket: QueuedTicket) -> None: ...

    def start(self, worker: str, lease_id: str, run: SimRun) -> None: ...

    def cancel(self, worker: str, run: SimRun) -> None: ...

    def send_line_running(self, number: int) -> None: ...

    def send_line_ended(self, ended: pb.LineEnded) -> None: ...

    def worker(self, name: str) -> SimWorker: ...

    @property
    def is_served(self) -> bool:
        """Whether a worker is attached. Without one, requests are held."""

    def on_held_requests(self, requests: int) -> None:
        """The number of held requests has changed."""
