"""The cores of `RunLines`: which lines are stored together, and which results a program has kept. Pure."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from penstock.chassis.errors import InvalidArgument

GROUP_LINES = 256
GROUP_BYTES = 1 << 20
GROUP_AGE_S = 0.5  # of its first line


class LineGroup(NamedTuple):
    """Lines that become one file."""

    content: bytes
    lines: int


@dataclass(slots=True)
class LineCollector:
    """Collects lines until there are enough of them, or the first has waited. Times are in s of any clock."""

    endpoint: str
    _lines: list[bytes] = field(default_factory=list)
    _bytes: int = 0
    _first_at: float = 0.0

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, custom_id: str, body: bytes, now: float) -> None:
        """A body that is no JSON object becomes an error of its line."""
        try:
            members = orjson.loads(body)
        except orjson.JSONDecodeError:
            members = None
        line = orjson.dumps({"custom_id": custom_id, "method": "POST", "url": self.endpoint, "body": members})
        if not self._lines:
            self._first_at = now
        self._lines.append(line)
        self._bytes += len(line)

    def due_in(self, now: float) -> float:
        """Return the seconds until the lines are stored; 0 if they are enough already."""
        if len(self._lines) >= GROUP_LINES or self._bytes >= GROUP_BYTES:
            return 0.0
        return max(0.0, self._first_at + GROUP_AGE_S - now)

    def take(self) -> LineGroup:
        group = LineGroup(b"\n".join(self._lines), len(self._lines))
        self._lines, self._bytes = [], 0
        return group


@dataclass(slots=True)
class ResultNumbers:
    """Numbers results, and finds the batches whose results are all acknowledged."""

    sent: int = 0
    _ends: deque[tuple[int, str]] = field(default_factory=deque)  # number of the last result of each batch

    def next_number(self) -> int:
        self.sent += 1
        return self.sent

    def end_batch(self, batch_id: str) -> None:
        """All results of a batch are numbered."""
        self._ends.append((self.sent, batch_id))

    def acknowledge(self, number: int) -> list[str]:
        """Return the batches that can be deleted. Raises InvalidArgument for a number that was not sent."""
        if number > self.sent:
            text = f"result {number} is acknowledged, but {self.sent} were sent"
            raise InvalidArgument(text, field="acknowledge.number")
        kept: list[str] = []
        while self._ends and self._ends[0][0] <= number:
            kept.append(self._ends.popleft()[1])
        return kept
