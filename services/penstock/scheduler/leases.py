"""The leases of one scheduler, from issue to release. Has no clock and no streams; `now` is in s."""

from dataclasses import dataclass, field
from itertools import takewhile

from google.protobuf.duration_pb2 import Duration

from penstock.chassis.clocks import StallFreeClock
from penstock.chassis.durations import set_seconds
from penstock.chassis.garbage import untracked
from penstock.v1.inference_pb2 import Priority

MAX_PREEMPTIONS = 3  # of a batch ticket; leases of later attempts run to their ends


@dataclass(slots=True)
class LeaseEntry:
    """One lease. It expires unless it is started in time."""

    lease_id: str
    ticket_id: str
    attempt: int
    queue: str  # shard that offered it
    worker: str  # stream of the worker while it is attached
    worker_id: str
    kv_blocks: int  # KV blocks that the sequence may grow to
    prompt_tokens: int = 0  # tokens to prefill, without cached ones
    predicted_output_tokens: int = 0  # 0: not predicted
    served_prompt_tokens: int = 0  # tokens that the worker has reported, as the next
    served_output_tokens: int = 0
    served_at_step: int = 0  # steps that the worker had done at that report
    first_token_after: float = 0.0  # s from the start at the worker; 0: no first token yet
    worker_number: int = 0  # number on the stream of its worker; 0: none
    report_stream: int = 0  # stream of its shard that knows `report_number`; 0: none
    report_number: int = 0
    has_ended: bool = False
    is_express: bool = False  # as its ticket, as the next
    priority: int = 0
    expires_at: float = 0.0  # s of the stall-free clock
    is_started: bool = False

    @property
    def is_batch(self) -> bool:
        return self.priority == Priority.PRIORITY_BATCH

    @property
    def is_preemptible(self) -> bool:
        """Whether its run may be ended for a ticket of another class."""
        return self.is_batch and self.is_started and self.attempt <= MAX_PREEMPTIONS


@dataclass
class LeaseBook:
    """All leases of one scheduler. Lease ids are never reused, which fences late frames of earlier leases.

    Expiration excludes stalls of this process, during which it does not read the starts of leases.
    """

    ttl: float  # s
    prefix: str  # prefix of lease ids, unique per start of the process
    clock: StallFreeClock = field(default_factory=StallFreeClock)
    leases: dict[str, LeaseEntry] = field(default_factory=dict)
    _unstarted: dict[str, LeaseEntry] = field(default_factory=dict)  # by ticket, oldest first
    _issued: int = 0

    def __post_init__(self) -> None:
        self.ttl_frame = Duration()
        set_seconds(self.ttl_frame, self.ttl)

    def __len__(self) -> int:
        return len(self.leases)

    def __repr__(self) -> str:
        return f"<LeaseBook {len(self)} leases, {self.unstarted_count} not started>"

    @property
    def unstarted_count(self) -> int:
        return len(self._unstarted)

    def new_id(self) -> str:
        self._issued += 1
        return f"{self.prefix}-{self._issued}"

    def add(self, entry: LeaseEntry) -> None:
        assert entry.ticket_id not in self._unstarted, "a ticket has at most one unstarted lease"
        self.leases[entry.lease_id] = entry
        untracked(self.leases)  # the collector would visit each entry; an insertion tracks the dict again
        self._unstarted[entry.ticket_id] = entry

    def adopt(self, entry: LeaseEntry) -> None:
        """Add a started lease that another scheduler granted, or this one before it lost the worker."""
        assert entry.is_started, "only started leases can be adopted: the state of others is unknown"
        self.leases[entry.lease_id] = entry
        untracked(self.leases)  # the collector would visit each entry; an insertion tracks the dict again

    def start(self, lease_id: str, worker: str) -> LeaseEntry | None:
        """Record that an edge started a lease on `worker`. Return the lease; None if nothing has changed."""
        entry = self.leases.get(lease_id)
        if entry is None or entry.is_started or entry.worker != worker:
            return None
        entry.is_started = True
        del self._unstarted[entry.ticket_id]
        return entry

    def end(self, entry: LeaseEntry) -> None:
        del self.leases[entry.lease_id]
        if not entry.is_started:
            del self._unstarted[entry.ticket_id]

    def on_worker(self, lease_id: str, worker: str) -> LeaseEntry | None:
        """Return a lease of this scheduler on this worker; None if there is no such lease."""
        entry = self.leases.get(lease_id)
        return entry if entry and entry.worker == worker else None

    def unstarted_for_ticket(self, ticket_id: str) -> LeaseEntry | None:
        return self._unstarted.get(ticket_id)

    def unstarted_on_worker(self, worker_id: str) -> list[LeaseEntry]:
        return [entry for entry in self._unstarted.values() if entry.worker_id == worker_id]

    def expiry_from(self, now: float) -> float:
        """Return the time of the stall-free clock at which a lease expires that is issued now."""
        return self.clock.at(now) + self.ttl

    def expired(self, now: float) -> list[LeaseEntry]:
        """Return the unstarted leases that have expired; the caller ends them. Called with each tick."""
        ran = self.clock.at(now)
        return list(takewhile(lambda entry: entry.expires_at <= ran, self._unstarted.values()))
