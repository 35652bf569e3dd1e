"""Starts that arrived before their lease was announced. Knows no clock."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.worker.quarantine.quarantine import TimerKey
from penstock.worker.runs.run import Run
from penstock.worker.runs.timers import Timers


@dataclass(slots=True, kw_only=True)
class ParkedStarts:
    """Runs that wait for the announcement of their lease, each with a timer under the key ("parked", lease_id)."""

    timers: Timers[TimerKey]  # the run table's
    announce_timeout: float  # s that a run waits
    max_runs: int
    _runs: dict[str, Run] = field(default_factory=dict)  # by lease_id

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._runs.values()))

    @property
    def is_full(self) -> bool:
        return len(self._runs) >= self.max_runs

    def find(self, lease_id: str) -> Run | None:
        return self._runs.get(lease_id)

    def add(self, run: Run, now: float) -> None:
        """Park a run until its timeout or its deadline, whichever is earlier."""
        self._runs[run.lease_id] = run
        self.timers.set(("parked", run.lease_id), min(now + self.announce_timeout, run.deadline))

    def pop(self, lease_id: str) -> Run | None:
        return self._runs.pop(lease_id, None)
