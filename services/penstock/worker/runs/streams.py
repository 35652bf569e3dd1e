"""The runs of each edge stream, by the handle that the edge gave them."""

from dataclasses import dataclass, field

from penstock.worker.runs.run import Run


@dataclass(slots=True)
class EdgeStreams:
    """Open edge streams. A handle names at most one run of its stream at a time."""

    _runs: dict[int, dict[int, Run]] = field(default_factory=dict)  # by stream, then by handle

    def __len__(self) -> int:
        return len(self._runs)

    def open(self, stream: int) -> None:
        self._runs[stream] = {}

    def close(self, stream: int) -> None:
        del self._runs[stream]

    def runs_of(self, stream: int) -> list[Run]:
        return list(self._runs[stream].values())

    def find(self, stream: int, handle: int) -> Run | None:
        return self._runs[stream].get(handle)

    def add(self, run: Run) -> None:
        self._runs[run.stream][run.handle] = run

    def discard(self, run: Run) -> None:
        """Free the run's handle, unless the stream is closed or the handle names another run by now."""
        handles = self._runs.get(run.stream, {})
        if handles.get(run.handle) is run:
            del handles[run.handle]
