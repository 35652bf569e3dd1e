"""Runs of which one may have crashed the engine. Knows no clock and no engine.

Whatever crashed an engine by itself would crash the next one too, wherever it ran. So such runs stay with the worker
whose engine it was and, once it has another, run one after another until each has come further than it had: the one
that crashes an engine again is found, on one worker, and the others lose time and nothing else.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.worker.run import Run


@dataclass(slots=True)
class Probation:
    held: deque[Run] = field(default_factory=deque)  # wait for their turn
    tried: Run | None = None  # has it
    _mark: int = 0  # tokens that `tried` had before

    def __bool__(self) -> bool:
        return bool(self.held) or self.tried is not None

    @staticmethod
    def suspects(running: Iterable[Run]) -> list[Run]:
        """Return those whose prompts the engine was at, as what is new to it is likelier to crash it; else all."""
        wanted = [run for run in running if run.ending is None]
        return [run for run in wanted if not run.tokens] or wanted

    def next(self) -> Run | None:
        """Return whose turn it is where nobody is being tried."""
        if self.tried is None and self.held:
            self.tried = self.held.popleft()
            self._mark = self.tried.tokens
            return self.tried
        return None

    def acquit(self) -> None:
        """Note what `tried` came to: beyond where it was, it may run on beside others."""
        if self.tried and self.tried.tokens > self._mark:
            self.tried = None

    def drop(self, run: Run) -> bool:
        """Forget a run that is over; True where it was held."""
        if run is self.tried:
            self.tried = None
        if run not in self.held:
            return False
        self.held.remove(run)
        return True
