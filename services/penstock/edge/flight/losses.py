"""What the runs that a request lost say of the workers they were on. Pure."""

from dataclasses import dataclass, field

MAX_AVOIDED = 16  # workers, the contract's bound


@dataclass(slots=True)
class Losses:
    """A stream that broke proves nothing against its worker: it may have been the network. So whoever lost a run is
    avoided for as long as somebody else can have the request, and no longer.
    """

    patience: float  # s mid-answer without any worker
    avoided: list[str] = field(default_factory=list)  # instance ids
    count: int = 0  # runs that an engine had, or may have had
    refusals: int = 0  # in a row, by workers whose engines never had the run
    _until: float = 0.0

    def note(self, worker_id: str, now: float, *, died: bool, never_ran: bool = False) -> None:
        """A run is lost; `died`: not by its worker's own word."""
        self._until = now + self.patience
        self.count += not never_ran
        self.refusals = self.refusals + 1 if never_ran else 0
        if died and worker_id not in self.avoided and len(self.avoided) < MAX_AVOIDED:
            self.avoided.append(worker_id)

    def forgive(self) -> bool:
        """Nobody else can have the request: avoid nobody any more. False where nobody was."""
        had_any = bool(self.avoided)
        self.avoided.clear()
        return had_any

    def may_wait(self, until: float) -> bool:
        """Half an answer is worth waiting for: its worker may be starting again at this moment."""
        return until < self._until
