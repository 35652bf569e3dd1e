"""What the runs that a request lost say of the workers they were on. Pure."""

from dataclasses import dataclass, field

MAX_AVOIDED_WORKERS = 16  # workers, the contract's bound


@dataclass(slots=True)
class FailedAttempts:
    """A stream that broke proves nothing against its worker: it may have been the network. So whoever lost a run is
    avoided for as long as somebody else can have the request, and no longer.
    """

    upstream_timeout: float  # s mid-answer without any worker
    avoided_workers: list[str] = field(default_factory=list)  # instance ids
    count: int = 0  # runs that an engine had, or may have had
    consecutive_rejections: int = 0  # in a row, by workers whose engines never had the run
    _wait_until: float = 0.0

    def record(self, worker_id: str, now: float, *, died: bool, never_ran: bool = False) -> None:
        """A run is lost; `died`: not by its worker's own word."""
        self._wait_until = now + self.upstream_timeout
        self.count += not never_ran
        self.consecutive_rejections = self.consecutive_rejections + 1 if never_ran else 0
        if died and worker_id not in self.avoided_workers and len(self.avoided_workers) < MAX_AVOIDED_WORKERS:
            self.avoided_workers.append(worker_id)

    def clear_avoided(self) -> bool:
        """Nobody else can have the request: avoid nobody any more. False where nobody was."""
        had_any = bool(self.avoided_workers)
        self.avoided_workers.clear()
        return had_any

    def can_wait(self, until: float) -> bool:
        """Half an answer is worth waiting for: its worker may be starting again at this moment."""
        return until < self._wait_until
