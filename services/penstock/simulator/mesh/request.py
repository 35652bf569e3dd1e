"""One request of a client, over all of its attempts."""

from dataclasses import dataclass
from random import Random

from penstock.bench.transcript import Transcript
from penstock.queue.ticket import QueuedTicket
from penstock.simulator.mesh.engine import SimRun
from penstock.simulator.scenario import SimTenant
from penstock.simulator.traffic.shared_prefixes import NO_PREFIX, SharedPrefix


@dataclass(slots=True, eq=False)
class SimRequest:
    """One request; its transcript covers all attempts and ends exactly once."""

    tenant: SimTenant
    prompt_tokens: int
    output_tokens: int
    transcript: Transcript
    rng: Random
    prefix: SharedPrefix = NO_PREFIX
    priority: int = 0
    max_output_tokens: int = 0  # as declared
    deadline: float = 0.0  # s; end of the time for the whole answer; 0: none
    line: int = 0  # number of the present run of a batch line; 0: a request of a client, or a line that does not run
    attempts: int = 0
    ticket: QueuedTicket | None = None  # of the current attempt; None between attempts and after the end
    run: SimRun | None = None  # None until the ticket has a lease
    worker: str = ""  # the worker of the run
    predicted_wait: float | None = None  # s, as the queue predicted for the current attempt
    predicted_ttft: float | None = None  # s, as the queue predicted for the current attempt
    submitted_at: float = 0.0  # s; start of the current attempt
    was_held: bool = False  # it arrived while the model had no worker
    home: str = ""  # region of its client; empty: the scenario has no regions
    region: str = ""  # whose edge has it
    away: float = 0.0  # s of its TTFT target that a guest spends outside of that region; 0: not a guest
    trip: float = 0.0  # s from that region to its client, beside the links of a mesh
    offered_to: tuple[str, ...] = ()  # regions, of the current attempt
    engine_tokens: int = 0  # positions that engines computed for it, over all attempts
    cached_tokens: int = 0  # positions that engines found in their caches, over all attempts

    @property
    def name(self) -> str:
        """A name that no other request has, in any region."""
        return f"{self.home}{'/' if self.home else ''}{self.transcript.number}"

    @property
    def is_guest(self) -> bool:
        return self.away > 0

    @property
    def is_away(self) -> bool:
        """Whether another region than its own has it, or has ended it."""
        return self.region != self.home

    @property
    def has_ended(self) -> bool:
        return bool(self.transcript.outcome)
