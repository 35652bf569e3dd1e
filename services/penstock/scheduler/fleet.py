"""The workers attached to one scheduler, and what each has left. Knows no clock and no stream."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from penstock.mesh.v1.scheduler_pb2 import Profile, Report
from penstock.mesh.v1.ticket_pb2 import CatalogEntry, Ticket


def tokens_of(ticket: Ticket) -> int:
    """Most tokens a ticket's sequence can get."""
    return ticket.prompt_tokens + ticket.max_output_tokens


@dataclass(slots=True)
class Worker:
    """One worker. Every lease is promised the KV blocks it may grow to, so a placed ticket always runs to its end."""

    key: str  # its stream
    worker_id: str
    address: str
    profile: Profile
    look_ahead: int  # leases beyond its slots, so that the next step refills a slot that falls free
    report: Report = field(default_factory=Report)
    promised: dict[str, int] = field(default_factory=dict)  # lease id: KV blocks
    promised_blocks: int = 0  # their sum
    unstarted_tokens: int = 0  # prompts of leases that its reports do not know yet

    # What follows from the promises. Every decision reads it of every worker, so it is worked out at each change.
    room: int = field(init=False)  # leases it can still take
    largest: int = field(init=False)  # tokens of the largest ticket it can take now
    used_share: float = field(init=False)  # of slots or blocks, whichever is scarcer

    def __post_init__(self) -> None:
        self._measure()

    def promise(self, lease_id: str, blocks: int) -> None:
        self.promised_blocks += blocks - self.promised.get(lease_id, 0)
        self.promised[lease_id] = blocks
        self._measure()

    def release(self, lease_id: str) -> None:
        """Idempotent."""
        self.promised_blocks -= self.promised.pop(lease_id, 0)
        self._measure()

    @property
    def model(self) -> str:
        return self.profile.model

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens that a new ticket would wait for."""
        return self.report.prefill_backlog_tokens + self.unstarted_tokens

    def blocks_for(self, ticket: Ticket) -> int:
        return -(-tokens_of(ticket) // self.profile.block_size)

    def can_ever_run(self, ticket: Ticket) -> bool:
        fits = tokens_of(ticket) <= min(self.profile.kv_blocks * self.profile.block_size, self.profile.context_length)
        return fits and self.model == ticket.model and self.worker_id not in ticket.avoid_workers

    def can_take(self, ticket: Ticket) -> bool:
        return tokens_of(ticket) <= self.largest and self.can_ever_run(ticket)

    def _measure(self) -> None:
        profile, leases = self.profile, len(self.promised)
        free_blocks = max(0, profile.kv_blocks - self.promised_blocks)
        self.room = max(0, profile.slots + self.look_ahead - leases) if free_blocks else 0
        self.largest = min(free_blocks * profile.block_size, profile.context_length) if self.room else 0
        self.used_share = max(leases / max(1, profile.slots), self.promised_blocks / max(1, profile.kv_blocks))


class Fleet:
    """All workers, by stream and by model."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        self._by_model: dict[str, dict[str, Worker]] = {}

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def __contains__(self, key: object) -> bool:
        return key in self._workers

    def __getitem__(self, key: str) -> Worker:
        return self._workers[key]

    def get(self, key: str) -> Worker | None:
        return self._workers.get(key)

    def add(self, worker: Worker) -> None:
        self._workers[worker.key] = worker
        self._by_model.setdefault(worker.model, {})[worker.key] = worker

    def remove(self, worker: Worker) -> None:
        del self._workers[worker.key]
        serving = self._by_model[worker.model]
        del serving[worker.key]
        if not serving:
            del self._by_model[worker.model]

    def named(self, worker_id: str) -> Worker | None:
        """Return the worker of that instance id, on whatever stream."""
        return next((worker for worker in self if worker.worker_id == worker_id), None)

    def serving(self, model: str) -> Collection[Worker]:
        return self._by_model.get(model, {}).values()

    def models(self) -> list[str]:
        return sorted(self._by_model)

    def capacity(self, model: str) -> tuple[int, int]:
        """Leases that can still be granted, and tokens of the largest."""
        serving = self.serving(model)
        return sum([worker.room for worker in serving]), max([worker.largest for worker in serving], default=0)

    def tokens_per_second(self, model: str) -> float:
        return sum(worker.report.tokens_per_second for worker in self.serving(model))

    def catalog(self) -> tuple[CatalogEntry, ...]:
        return tuple(_entry(model, list(self.serving(model))) for model in self.models())


def able(workers: Iterable[Worker], ticket: Ticket) -> list[Worker]:
    """Return those of the workers of its model that can take `ticket` now."""
    tokens, avoided = tokens_of(ticket), set(ticket.avoid_workers)
    return [worker for worker in workers if tokens <= worker.largest and worker.worker_id not in avoided]


def _entry(model: str, workers: list[Worker]) -> CatalogEntry:
    newest = workers[-1]
    return CatalogEntry(
        model=model,
        card_digest=newest.profile.card_digest,
        worker_address=newest.address,
        workers_hint=len(workers),
    )
