"""One request of a client through all its tries."""

from dataclasses import dataclass
from random import Random

from penstock.bench.transcript import Transcript
from penstock.queue.ticket import QueuedTicket
from penstock.simulator.mesh.engine import SimRun
from penstock.simulator.scenario import SimTenant
from penstock.simulator.traffic.shared_prefixes import NO_PREFIX, SharedPrefix


@dataclass(slots=True, eq=False)
class SimRequest:
    """`history` is what the client saw, over all its tries; it ends exactly once."""

    tenant: SimTenant
    prompt_tokens: int
    output_tokens: int
    transcript: Transcript
    rng: Random
    prefix: SharedPrefix = NO_PREFIX
    max_output_tokens: int = 0  # max_output_tokens
    attempts: int = 0
    ticket: QueuedTicket | None = None  # of the present try; None between tries and at the end
    run: SimRun | None = None  # where the ticket has a lease
    worker: str = ""  # that has the run
    predicted_wait: float | None = None  # s, as the queue said when it took the ticket in
    predicted_ttft: float | None = None  # s, likewise; of the present try
    submitted_at: float = 0.0  # of the present try
    engine_tokens: int = 0  # positions that engines computed for it, in all tries
    cached_tokens: int = 0  # positions that they found computed, likewise

    @property
    def has_ended(self) -> bool:
        return bool(self.transcript.outcome)
