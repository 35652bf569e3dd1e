"""Timeline of one request: consecutive stages whose lengths add up to the total."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from google.protobuf.duration_pb2 import Duration

from penstock.v1.inference_pb2 import Stage
from penstock.v1.inference_pb2 import Timeline as TimelineMessage

NANOS_PER_S = 1_000_000_000


class MeasuredStage(NamedTuple):
    """A stage whose length another process measured."""

    tier: str
    name: str
    seconds: float


class Timeline:
    """Stages without gaps from the arrival to the last mark, in whole nanoseconds so that sums are exact."""

    def __init__(self, arrived: float) -> None:
        self._arrived_at_ns = self._last_mark = _nanos(arrived)
        self._stages: list[tuple[str, str, int]] = []

    @property
    def total(self) -> float:
        return (self._last_mark - self._arrived_at_ns) / NANOS_PER_S

    def add_stage(self, tier: str, name: str, now: float) -> None:
        """Add one stage from the last mark to `now`."""
        self._add(tier, name, max(0, _nanos(now) - self._last_mark))

    def add_measured_stages(
        self, now: float, before: Sequence[MeasuredStage], rest: tuple[str, str], after: Sequence[MeasuredStage] = ()
    ) -> None:
        """Divide the time since the last mark into stages that other processes measured, and `rest` between them.

        If the measured lengths exceed the time since the last mark, the later stages are shortened first: clocks of
        different processes do not agree exactly.
        """
        left = max(0, _nanos(now) - self._last_mark)
        lengths = []
        for part in (*before, *after):
            lengths.append(min(left, _nanos(part.seconds)))
            left -= lengths[-1]
        parts = [(part.tier, part.name) for part in (*before, *after)]
        parts.insert(len(before), rest)
        lengths.insert(len(before), left)
        for (tier, name), length in zip(parts, lengths, strict=True):
            self._add(tier, name, length)

    def intervals(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield tier, name, begin and end of each stage, in Unix ns."""
        began = self._arrived_at_ns
        for tier, name, length in self._stages:
            yield tier, name, began, began + length
            began += length

    def to_message(self, *, trace_id: str, worker_id: str, attempts: int) -> TimelineMessage:
        """Return the timeline as a message for the client."""
        stages, start = [], 0
        for tier, name, length in self._stages:
            stages.append(Stage(tier=tier, name=name, start=_duration(start), length=_duration(length)))
            start += length
        return TimelineMessage(
            total=_duration(start), stages=stages, trace_id=trace_id, worker_id=worker_id, attempts=attempts
        )

    def seconds(self, tier: str, name: str) -> float:
        """Return the total length in seconds of all stages of that tier and name."""
        return sum(length for *which, length in self._stages if which == [tier, name]) / NANOS_PER_S

    def _add(self, tier: str, name: str, length: int) -> None:
        self._stages.append((tier, name, length))
        self._last_mark += length


def _nanos(seconds: float) -> int:
    return round(seconds * NANOS_PER_S)


def _duration(nanos: int) -> Duration:
    return Duration(seconds=nanos // NANOS_PER_S, nanos=nanos % NANOS_PER_S)
