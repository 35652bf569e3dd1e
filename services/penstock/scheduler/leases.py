"""The leases of one scheduler from issue to release. Knows no clock and no stream; `now` is in s."""

from dataclasses import dataclass, field
from datetime import timedelta
from itertools import takewhile

from google.protobuf.duration_pb2 import Duration

from penstock.chassis.clocks import StallFreeClock


@dataclass(slots=True)
class LeaseEntry:
    """One lease. A started one no longer lapses."""

    lease_id: str
    ticket_id: str
    attempt: int
    queue: str  # shard that offered it
    worker: str  # stream of the worker, as long as that is attached
    worker_id: str
    kv_blocks: int  # KV blocks it may grow to
    prompt_tokens: int = 0  # to be computed
    predicted_output_tokens: int = 0  # tokens; 0: nobody has predicted any
    served_prompt_tokens: int = 0  # tokens that its worker has told of, like the next
    served_output_tokens: int = 0
    served_at_step: int = 0  # steps that the worker had done when it told
    first_token_after: Duration | None = None  # on its worker; None: none has come
    is_express: bool = False  # as its ticket
    expires_at: float = 0.0  # s of its book's own time
    is_started: bool = False


@dataclass
class LeaseBook:
    """All leases. Ids are never used again, which fences frames of a run that has moved on.

    They lapse by the scheduler's `own_time`: one that stood still has not read yet what was started meanwhile.
    """

    ttl: float  # s
    prefix: str  # of lease ids, unique per start of the process
    clock: StallFreeClock = field(default_factory=StallFreeClock)
    leases: dict[str, LeaseEntry] = field(default_factory=dict)
    _unstarted: dict[str, LeaseEntry] = field(default_factory=dict)  # by ticket, oldest first
    _issued: int = 0

    def __post_init__(self) -> None:
        self.ttl_frame = Duration()
        self.ttl_frame.FromTimedelta(timedelta(seconds=self.ttl))

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
        assert entry.ticket_id not in self._unstarted, "a ticket has one lease that may still start"
        self.leases[entry.lease_id] = entry
        self._unstarted[entry.ticket_id] = entry

    def adopt(self, entry: LeaseEntry) -> None:
        """Take over a started lease that another scheduler granted, or this one before it lost the worker."""
        assert entry.is_started, "nobody knows whether another scheduler's lease may still start"
        self.leases[entry.lease_id] = entry

    def start(self, lease_id: str, worker: str) -> LeaseEntry | None:
        """Note that an edge started it on `worker`; None when that is no news."""
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
        """Return a lease if it is one of this scheduler on this worker."""
        entry = self.leases.get(lease_id)
        return entry if entry and entry.worker == worker else None

    def unstarted_for_ticket(self, ticket_id: str) -> LeaseEntry | None:
        return self._unstarted.get(ticket_id)

    def unstarted_on_worker(self, worker_id: str) -> list[LeaseEntry]:
        return [entry for entry in self._unstarted.values() if entry.worker_id == worker_id]

    def expiry_from(self, now: float) -> float:
        """Return when, by our own time, a lease is over that is issued now."""
        return self.clock.at(now) + self.ttl

    def expired(self, now: float) -> list[LeaseEntry]:
        """Return unstarted leases whose time is over; the caller ends them. To be asked several times a second."""
        ran = self.clock.at(now)
        return list(takewhile(lambda entry: entry.expires_at <= ran, self._unstarted.values()))
