"""A worker that is attached to a scheduler: its promised and free capacity, and its measured rates."""

from dataclasses import dataclass, field

from google.protobuf.duration_pb2 import Duration

from penstock.chassis.garbage import untracked
from penstock.mesh.model_key import model_key
from penstock.mesh.v1.queue_pb2 import WorkerSteps
from penstock.mesh.v1.scheduler_pb2 import LoadReport, Profile
from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.scheduler.leases import LeaseEntry

# Assumed until the first load report of a worker of the pool.
DEFAULT_PREFILL_TOKENS_PER_S = 4_000.0  # tokens/s
DEFAULT_STEP_S = 0.02  # s

MIN_REPORTED_STEPS = 16  # new steps per report to a shard, which updates all tickets at the worker then


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def max_tokens_of(ticket: Ticket) -> int:
    """Return the most tokens that the sequence of a ticket can have."""
    return ticket.prompt_tokens + ticket.max_output_tokens


@dataclass(slots=True)
class CapacityTotals:
    """Capacity of one worker, or totals over the workers of a model."""

    available_leases: int = 0
    free_tokens: int = 0  # tokens of free KV blocks, if a lease is available
    open_workers: int = 0  # workers with an available lease
    running: int = 0
    slots: int = 0
    tokens_per_second: int = 0  # an integer, so that totals have no rounding error

    def replace(self, before: "CapacityTotals", now: "CapacityTotals") -> None:
        """Replace the capacity of a worker in the totals."""
        self.available_leases += now.available_leases - before.available_leases
        self.free_tokens += now.free_tokens - before.free_tokens
        self.open_workers += now.open_workers - before.open_workers
        self.running += now.running - before.running
        self.slots += now.slots - before.slots
        self.tokens_per_second += now.tokens_per_second - before.tokens_per_second


MAX_EXCESS_TURNOVER = 1.0  # a worker that received less, because it was full, need not catch up


@dataclass(slots=True)
class CacheTurnover:
    """Turnovers of the caches of all workers of a pool: prompt tokens placed, in multiples of each worker's cache."""

    total: float = 0.0
    workers: int = 0
    mean: float = 0.0  # 0 without workers

    def add(self, turnover: float, workers: int = 0) -> None:
        """Add the turnover of a worker, and the worker itself if it joins (1) or leaves (-1)."""
        self.total += turnover
        self.workers += workers
        self.mean = self.total / self.workers if self.workers else 0.0


@dataclass(slots=True)
class PoolRates:
    """Rates that a worker of a pool reported most recently, assumed for workers without reports; 0: none reported.

    A much slower default would keep all load at the workers that were used first.
    """

    prefill_tokens_per_s: float = 0.0
    decode_step_s: float = 0.0

    @property
    def are_known(self) -> bool:
        return self.prefill_tokens_per_s > 0 and self.decode_step_s > 0


@dataclass(slots=True, eq=False)
class Worker:
    """One worker. Each lease is promised all KV blocks that it may need, so a placed ticket always runs to its end."""

    key: str  # stream
    worker_id: str
    address: str
    profile: Profile
    look_ahead: int  # leases beyond its slots, so that the next step fills a released slot
    zone: str = ""  # empty: unknown
    report: LoadReport = field(default_factory=LoadReport)
    promised: dict[str, int] = field(default_factory=dict)  # lease id: KV blocks
    promised_blocks: int = 0  # sum of `promised`
    preemptible: dict[str, None] = field(default_factory=dict)  # of `promised`, newest last
    preempted: set[str] = field(default_factory=set)  # leases that were revoked and whose runs have not ended yet
    unstarted_tokens: int = 0  # prompt tokens of leases that have not started
    started_tokens: int = 0  # prompt tokens of leases that have started since its last load report
    reported_steps: dict[str, int] = field(default_factory=dict)  # steps last reported, by shard
    numbered_leases: dict[int, LeaseEntry] = field(default_factory=dict)  # by their numbers on this stream
    changed_workers: list["Worker"] = field(default_factory=list)  # list of its pool, to which it is added on a change
    is_marked_changed: bool = False
    are_rates_due: bool = True  # to be refreshed
    _slots: int = field(init=False)
    _kv_blocks: int = field(init=False)
    _free_leases: int = field(init=False)  # leases that it can take now

    # Derived from the profile, the promises and the latest report. Decisions read these more often than they change.
    model: str = field(init=False)  # key
    block_size: int = field(init=False)  # tokens
    cache_tokens: int = field(init=False)  # tokens of its KV pool
    max_supported_tokens: int = field(init=False)  # tokens of the largest ticket that it can run when empty
    available_leases: int = field(init=False)  # leases that it can take now of other tickets than batch tickets
    max_ticket_tokens: int = field(init=False)  # tokens of the largest ticket that it can take now
    used_share: float = field(init=False)  # share of slots or of KV blocks that are promised, whichever is larger
    kept_share: float = field(init=False)  # the same without the slots of preemptible leases
    cache_turnover: float = 0.0
    pool_turnover: CacheTurnover = field(default_factory=CacheTurnover)  # of its pool
    pool_rates: PoolRates = field(default_factory=PoolRates)
    prefill_tokens_per_s: float = DEFAULT_PREFILL_TOKENS_PER_S
    step_s: float = DEFAULT_STEP_S
    decode_step_s: float = DEFAULT_STEP_S  # of a step without prefill

    def __post_init__(self) -> None:
        self.apply_profile(self.profile)

    def apply_profile(self, profile: Profile) -> None:
        """Take the capacity of a profile. A worker in a pool changes by `Pool.apply_profile`."""
        self.profile = profile
        self.model, self.block_size = model_key(profile.model, profile.card_digest), profile.block_size
        self._slots, self._kv_blocks = profile.slots, profile.kv_blocks
        self.cache_tokens = profile.kv_blocks * profile.block_size or 1
        self.max_supported_tokens = min(profile.kv_blocks * profile.block_size, profile.context_length)
        self._update_capacity()

    def __repr__(self) -> str:
        return f"<Worker {self.worker_id}: {len(self.promised)} leases, {self.promised_blocks} blocks promised>"

    def promise(self, lease_id: str, blocks: int) -> None:
        self.promised_blocks += blocks - self.promised.get(lease_id, 0)
        self.promised[lease_id] = blocks
        self._update_capacity()

    def release(self, lease_id: str) -> None:
        """Free the KV blocks of a lease. Idempotent."""
        self.preempted.discard(lease_id)
        if lease_id in self.promised:
            self.promised_blocks -= self.promised.pop(lease_id)
            self.preemptible.pop(lease_id, None)
            self._update_capacity()

    def allow_preemption(self, lease_id: str) -> None:
        self.preemptible[lease_id] = None
        self._update_capacity()

    def preempt(self) -> list[str]:
        """Free the newest preemptible leases until one more lease has a slot. Return their ids.

        The newest ones have computed the fewest tokens, which their next runs compute again.
        """
        found = []
        while self.preemptible and len(self.promised) >= self._slots:
            lease_id = next(reversed(self.preemptible))
            self.release(lease_id)
            self.preempted.add(lease_id)
            found.append(lease_id)
        return found

    def number_lease(self, number: int, entry: LeaseEntry) -> None:
        """Name a lease by a number in later progress of this stream. It has one number at a time."""
        self.forget_number(entry)
        entry.worker_number = number
        self.numbered_leases[number] = entry
        untracked(self.numbered_leases)  # as the leases of `LeaseBook`

    def forget_number(self, entry: LeaseEntry) -> None:
        if self.numbered_leases.get(entry.worker_number) is entry:
            del self.numbered_leases[entry.worker_number]

    def add_unstarted_tokens(self, prompt_tokens: int, *, is_batch: bool = False) -> None:
        """Add the prompt of a new lease. A negative value removes the prompt of a lease that will not start.

        Batch prompts are not in the backlog: they are prefilled after others.
        """
        if not is_batch:
            self.unstarted_tokens += prompt_tokens
        self._add_turnover(prompt_tokens / self.cache_tokens)
        self.mark_changed()

    def join_pool(self, turnover: CacheTurnover, rates: PoolRates, changed_workers: list["Worker"]) -> None:
        self.cache_turnover, self.pool_turnover, self.pool_rates = turnover.mean, turnover, rates
        turnover.add(self.cache_turnover, 1)
        self.changed_workers, self.is_marked_changed, self.are_rates_due = changed_workers, False, True
        self.mark_changed()

    def leave_pool(self) -> None:
        self.pool_turnover.add(-self.cache_turnover, -1)
        self.changed_workers = []

    @property
    def excess_turnover(self) -> float:
        """Turnover of this cache beyond the mean of its pool, from -1 to 1."""
        excess = self.cache_turnover - self.pool_turnover.mean
        if excess > MAX_EXCESS_TURNOVER:
            return MAX_EXCESS_TURNOVER
        return max(-MAX_EXCESS_TURNOVER, excess)

    def _add_turnover(self, turnover: float) -> None:
        lowest = self.pool_turnover.mean - MAX_EXCESS_TURNOVER
        added = max(lowest, self.cache_turnover + turnover) - self.cache_turnover
        self.cache_turnover += added
        self.pool_turnover.add(added)

    def on_lease_started(self, prompt_tokens: int, *, is_batch: bool = False) -> None:
        """Keep counting a prompt that the worker has received, because only its next load report includes it."""
        if is_batch:
            return
        self.unstarted_tokens -= prompt_tokens
        self.started_tokens += prompt_tokens

    def on_load_report(self, report: LoadReport) -> None:
        self.report, self.started_tokens, self.are_rates_due = report, 0, True
        self.mark_changed()

    def on_steps(self, steps: int) -> None:
        """Record the steps that it has done, of a report that is newer than its last load report."""
        self.report.steps = max(self.report.steps, steps)

    def steps_update_for(self, queue: str) -> WorkerSteps | None:
        """Return the steps to report to a shard, and record them as reported; None if there are too few new steps."""
        steps = self.report.steps
        if steps < self.reported_steps.get(queue, 0) + MIN_REPORTED_STEPS:
            return None
        self.reported_steps[queue] = steps
        return WorkerSteps(worker_id=self.worker_id, steps=steps)

    def refresh_rates(self) -> None:
        """Update the rates from the latest report. It runs per decision, because reports are more frequent."""
        self.are_rates_due = False
        report, rates = self.report, self.pool_rates
        if report.prefill_tokens_per_second:
            rates.prefill_tokens_per_s = report.prefill_tokens_per_second
        self.step_s = _seconds(report.step_time) or DEFAULT_STEP_S
        if decode := _seconds(report.decode_step_time):
            rates.decode_step_s = decode
        self.decode_step_s = decode or _seconds(report.step_time) or rates.decode_step_s or DEFAULT_STEP_S
        self.prefill_tokens_per_s = (
            report.prefill_tokens_per_second or rates.prefill_tokens_per_s or DEFAULT_PREFILL_TOKENS_PER_S
        )

    def mark_changed(self) -> None:
        if not self.is_marked_changed:
            self.is_marked_changed = True
            self.changed_workers.append(self)

    @property
    def prefill_backlog_tokens(self) -> int:
        """Prompt tokens before that of a new ticket."""
        return self.report.prefill_backlog_tokens + self.unstarted_tokens + self.started_tokens

    @property
    def free_blocks(self) -> int:
        """KV blocks that are not promised; 0 if the leases of an attaching worker exceed its pool."""
        return max(0, self._kv_blocks - self.promised_blocks)

    @property
    def capacity(self) -> CapacityTotals:
        room, report = self.available_leases, self.report
        tokens = self.free_blocks * self.block_size if room else 0
        return CapacityTotals(room, tokens, int(room > 0), report.running, self._slots, round(report.tokens_per_second))

    def batch_leases(self, headroom: int) -> int:
        """Return the leases that it can take of batch tickets, if these leave `headroom` slots free; 0: none."""
        kept = self.look_ahead + headroom if headroom else 0
        return max(0, self._free_leases - kept)

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
        self._free_leases = max(0, self._slots + self.look_ahead - leases) if free_blocks else 0
        preempting = 1 if self.preemptible and free_blocks else 0  # a lease for which `preempt` frees a slot
        self.available_leases = max(self._free_leases, preempting)
        self.max_ticket_tokens = (
            min(free_blocks * self.block_size, self.max_supported_tokens) if self.available_leases else 0
        )
        blocks_share = self.promised_blocks / (self._kv_blocks or 1)
        self.used_share = max(leases / (self._slots or 1), blocks_share)
        self.kept_share = max((leases - len(self.preemptible)) / (self._slots or 1), blocks_share)
        self.mark_changed()
