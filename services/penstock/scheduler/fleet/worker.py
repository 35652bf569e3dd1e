"""One worker attached to a scheduler: what it promised, what it has left, how fast it is."""

from dataclasses import dataclass, field

from penstock.mesh.v1.queue_pb2 import WorkerSteps
from penstock.mesh.v1.scheduler_pb2 import LoadReport, Profile
from penstock.mesh.v1.ticket_pb2 import Ticket

# What is assumed of a worker before its first steps.
DEFAULT_PREFILL_TOKENS_PER_S = 4_000.0  # tokens per s
DEFAULT_STEP_S = 0.02  # s

MIN_REPORTED_STEPS = 16  # more of its steps are worth telling: a shard looks at all that run there then


def max_tokens_of(ticket: Ticket) -> int:
    """Most tokens a ticket's sequence can get."""
    return ticket.prompt_tokens + ticket.max_output_tokens


@dataclass(slots=True)
class CapacityTotals:
    """What a worker adds to the totals of its model; and those totals."""

    available_leases: int = 0  # leases
    free_tokens: int = 0  # that fit into what is not promised, where there is room
    open_workers: int = 0  # whether there is
    running: int = 0
    slots: int = 0
    tokens_per_second: int = 0  # whole, so that sums come back to zero

    def replace(self, before: "CapacityTotals", now: "CapacityTotals") -> None:
        """Take `before` out of the totals and `now` in."""
        self.available_leases += now.available_leases - before.available_leases
        self.free_tokens += now.free_tokens - before.free_tokens
        self.open_workers += now.open_workers - before.open_workers
        self.running += now.running - before.running
        self.slots += now.slots - before.slots
        self.tokens_per_second += now.tokens_per_second - before.tokens_per_second


@dataclass(slots=True, eq=False)
class Worker:
    """Every lease is promised the KV blocks it may grow to, so a placed ticket always runs to its end."""

    key: str  # its stream
    worker_id: str
    address: str
    profile: Profile
    look_ahead: int  # leases beyond its slots, so that the next step refills a slot that falls free
    zone: str = ""  # where it runs; empty: unknown
    report: LoadReport = field(default_factory=LoadReport)
    promised: dict[str, int] = field(default_factory=dict)  # lease id: KV blocks
    promised_blocks: int = 0  # their sum
    unstarted_tokens: int = 0  # prompts of leases that have not started
    started_tokens: int = 0  # prompts of leases that have started since its last report
    reported_steps: dict[str, int] = field(default_factory=dict)  # of its steps, what shards were told last
    changed_workers: list["Worker"] = field(default_factory=list)  # where it is listed once it has changed
    is_marked_changed: bool = False
    _slots: int = field(init=False)
    _kv_blocks: int = field(init=False)

    # What follows from the profile, the promises and the last report. Decisions read it more often than it changes.
    model: str = field(init=False)
    block_size: int = field(init=False)  # tokens
    max_supported_tokens: int = field(init=False)  # tokens of the largest ticket it could run, were it empty
    available_leases: int = field(init=False)  # leases it can still take
    max_ticket_tokens: int = field(init=False)  # tokens of the largest ticket it can take now
    used_share: float = field(init=False)  # of slots or of promised blocks, whichever is scarcer
    prefill_tokens_per_s: float = DEFAULT_PREFILL_TOKENS_PER_S  # tokens per s
    step_s: float = DEFAULT_STEP_S

    def __post_init__(self) -> None:
        profile = self.profile
        self.model, self.block_size = profile.model, profile.block_size
        self._slots, self._kv_blocks = profile.slots, profile.kv_blocks
        self.max_supported_tokens = min(profile.kv_blocks * profile.block_size, profile.context_length)
        self._update_capacity()

    def __repr__(self) -> str:
        return f"<Worker {self.worker_id}: {len(self.promised)} leases, {self.promised_blocks} blocks promised>"

    def promise(self, lease_id: str, blocks: int) -> None:
        self.promised_blocks += blocks - self.promised.get(lease_id, 0)
        self.promised[lease_id] = blocks
        self._update_capacity()

    def release(self, lease_id: str) -> None:
        """Idempotent."""
        if lease_id in self.promised:
            self.promised_blocks -= self.promised.pop(lease_id)
            self._update_capacity()

    def add_unstarted_tokens(self, prompt_tokens: int) -> None:
        """Count a prompt that is on its way here; or, below 0, one that is not coming any more."""
        self.unstarted_tokens += prompt_tokens
        self.mark_changed()

    def on_lease_started(self, prompt_tokens: int) -> None:
        """Keep counting a prompt that the worker has received: the next report is the first that includes it."""
        self.unstarted_tokens -= prompt_tokens
        self.started_tokens += prompt_tokens

    def on_load_report(self, report: LoadReport) -> None:
        self.report, self.started_tokens = report, 0
        self.mark_changed()

    def steps_update_for(self, queue: str) -> WorkerSteps | None:
        """Return how far it is where a shard is to be told of that; it is then taken to know it."""
        steps = self.report.steps
        if steps < self.reported_steps.get(queue, 0) + MIN_REPORTED_STEPS:
            return None
        self.reported_steps[queue] = steps
        return WorkerSteps(worker_id=self.worker_id, steps=steps)

    def refresh_rates(self) -> None:
        """Work out what the last report comes to: there are more of them than decisions."""
        self.is_marked_changed = False
        self.prefill_tokens_per_s = self.report.prefill_tokens_per_second or DEFAULT_PREFILL_TOKENS_PER_S
        step = self.report.step_time
        self.step_s = (step.seconds + step.nanos / 1e9) or DEFAULT_STEP_S

    def mark_changed(self) -> None:
        if not self.is_marked_changed:
            self.is_marked_changed = True
            self.changed_workers.append(self)

    @property
    def prefill_backlog_tokens(self) -> int:
        """Prompt tokens that a new ticket would wait for."""
        return self.report.prefill_backlog_tokens + self.unstarted_tokens + self.started_tokens

    @property
    def free_blocks(self) -> int:
        """Return the KV blocks that are not promised; what runs on a worker that attaches may be promised too many."""
        return max(0, self._kv_blocks - self.promised_blocks)

    @property
    def capacity(self) -> CapacityTotals:
        room, report = self.available_leases, self.report
        tokens = self.free_blocks * self.block_size if room else 0
        return CapacityTotals(room, tokens, int(room > 0), report.running, self._slots, round(report.tokens_per_second))

    def blocks_for(self, ticket: Ticket) -> int:
        return -(-max_tokens_of(ticket) // self.block_size)

    def can_ever_run(self, ticket: Ticket) -> bool:
        return (
            max_tokens_of(ticket) <= self.max_supported_tokens
            and self.model == ticket.model
            and self.worker_id not in ticket.avoid_workers
        )

    def can_take(self, ticket: Ticket) -> bool:
        return max_tokens_of(ticket) <= self.max_ticket_tokens and self.can_ever_run(ticket)

    def _update_capacity(self) -> None:
        leases, free_blocks = len(self.promised), self.free_blocks
        self.available_leases = max(0, self._slots + self.look_ahead - leases) if free_blocks else 0
        self.max_ticket_tokens = (
            min(free_blocks * self.block_size, self.max_supported_tokens) if self.available_leases else 0
        )
        self.used_share = max(leases / (self._slots or 1), self.promised_blocks / (self._kv_blocks or 1))
        self.mark_changed()
