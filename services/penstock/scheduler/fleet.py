"""The workers attached to one scheduler, and what each has left. Knows no clock and no stream."""

from collections.abc import Iterable, Iterator
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

    def promise(self, lease_id: str, blocks: int) -> None:
        self.promised[lease_id] = blocks
        self.promised_blocks += blocks

    def release(self, lease_id: str) -> None:
        """Idempotent."""
        self.promised_blocks -= self.promised.pop(lease_id, 0)

    @property
    def free_blocks(self) -> int:
        return max(0, self.profile.kv_blocks - self.promised_blocks)

    @property
    def room(self) -> int:
        """Leases it can still take."""
        return max(0, self.profile.slots + self.look_ahead - len(self.promised)) if self.free_blocks else 0

    @property
    def largest(self) -> int:
        """Tokens of the largest ticket it can take now."""
        return min(self.free_blocks * self.profile.block_size, self.profile.context_length) if self.room else 0

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens that a new ticket would wait for."""
        return self.report.prefill_backlog_tokens + self.unstarted_tokens

    @property
    def used_share(self) -> float:
        slots = len(self.promised) / max(1, self.profile.slots)
        return max(slots, self.promised_blocks / max(1, self.profile.kv_blocks))

    def blocks_for(self, ticket: Ticket) -> int:
        return -(-tokens_of(ticket) // self.profile.block_size)

    def can_ever_run(self, ticket: Ticket) -> bool:
        fits = tokens_of(ticket) <= min(self.profile.kv_blocks * self.profile.block_size, self.profile.context_length)
        return fits and self.profile.model == ticket.model and self.worker_id not in ticket.avoid_workers

    def can_take(self, ticket: Ticket) -> bool:
        return self.can_ever_run(ticket) and tokens_of(ticket) <= self.largest


class Fleet(dict[str, Worker]):
    """All workers by stream."""

    def serving(self, model: str) -> Iterator[Worker]:
        return (worker for worker in self.values() if worker.profile.model == model)

    def room(self, model: str) -> int:
        return sum(worker.room for worker in self.serving(model))

    def largest(self, model: str) -> int:
        return max((worker.largest for worker in self.serving(model)), default=0)

    def tokens_per_second(self, model: str) -> float:
        return sum(worker.report.tokens_per_second for worker in self.serving(model))

    def models(self) -> set[str]:
        return {worker.profile.model for worker in self.values()}

    def catalog(self) -> tuple[CatalogEntry, ...]:
        return tuple(_entry(model, list(self.serving(model))) for model in sorted(self.models()))


def _entry(model: str, workers: list[Worker]) -> CatalogEntry:
    newest = workers[-1]
    return CatalogEntry(
        model=model,
        card_digest=newest.profile.card_digest,
        worker_address=newest.address,
        workers_hint=len(workers),
    )


def workers_that(workers: Iterable[Worker], ticket: Ticket) -> list[Worker]:
    """Those that can take `ticket` now."""
    return [worker for worker in workers if worker.can_take(ticket)]
