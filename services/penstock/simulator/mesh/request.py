"""One request of a client through all its tries."""

from dataclasses import dataclass
from random import Random

from penstock.bench.history import History
from penstock.queue.waiting import QueuedTicket
from penstock.simulator.mesh.engine import Run
from penstock.simulator.scenario import Tenant
from penstock.simulator.traffic.shared_prefixes import NOTHING, Beginning


@dataclass(slots=True, eq=False)
class Request:
    """`history` is what the client saw, over all its tries; it ends exactly once."""

    tenant: Tenant
    prompt: int
    output: int
    history: History
    rng: Random
    beginning: Beginning = NOTHING
    declared: int = 0  # max_output_tokens
    tries: int = 0
    ticket: QueuedTicket | None = None  # of the present try; None between tries and at the end
    run: Run | None = None  # where the ticket has a lease
    worker: str = ""  # that has the run
    predicted_wait: float | None = None  # s, as the queue said when it took the ticket in
    predicted_ttft: float | None = None  # s, likewise; of the present try
    submitted: float = 0.0  # of the present try
    engine_tokens: int = 0  # positions that engines computed for it, in all tries
    cached_tokens: int = 0  # positions that they found computed, likewise

    @property
    def is_over(self) -> bool:
        return bool(self.history.outcome)
