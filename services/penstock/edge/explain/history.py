"""The requests that an edge remembers: the latest ones, and for longer those that failed or were slow."""

from collections import deque
from dataclasses import dataclass, field

from penstock.chassis.observability.sampling import SlowThreshold
from penstock.edge.explain.record import Record

MAX_RECENT = 10_000  # requests
MAX_NOTABLE = 10_000  # requests that failed or were slow, beyond the recent ones
MAX_BYTES = 16 << 20  # of the records of each kind; one with eight stages has about 900 bytes with its ids
INDEX_BYTES = 100  # of an id in the index
PREFIXES = ("chatcmpl-", "cmpl-", "msg_", "resp_")


@dataclass(slots=True)
class RecordRing:
    """The latest records, bounded in number and bytes."""

    max_records: int
    max_bytes: int = MAX_BYTES
    size: int = 0  # bytes
    records: deque[Record] = field(default_factory=deque)

    def add(self, record: Record) -> list[Record]:
        """Add a record. Return those that it displaces, the oldest first."""
        self.records.append(record)
        self.size += _size_of(record)
        displaced = []
        while len(self.records) > self.max_records or self.size > self.max_bytes:
            oldest = self.records.popleft()
            self.size -= _size_of(oldest)
            displaced.append(oldest)
        return displaced


def _size_of(record: Record) -> int:
    return len(record.packed) + sum(len(each) + INDEX_BYTES for each in record.ids)


class RequestHistory:
    """Finds a request by any of its ids. Of several requests with one id, it finds the latest."""

    def __init__(self, max_recent: int = MAX_RECENT, max_notable: int = MAX_NOTABLE) -> None:
        self._recent, self._notable = RecordRing(max_recent), RecordRing(max_notable)
        self._by_id: dict[str, Record] = {}
        self._slow = SlowThreshold()

    @property
    def figures(self) -> dict[str, float]:
        """Figures of the admin snapshot."""
        return {
            "requests_remembered": len(self._recent.records) + len(self._notable.records),
            "request_history_bytes": self._recent.size + self._notable.size,
        }

    def add(self, record: Record, took_s: float, *, failed: bool) -> None:
        """Remember a request that took `took_s` seconds."""
        for each in record.ids:
            if each:
                self._by_id[each] = record
        ring = self._notable if self._slow.is_slow(took_s) or failed else self._recent
        for displaced in ring.add(record):
            self._forget(displaced)

    def find(self, request_id: str) -> bytes | None:
        """Return the packed facts of the latest request with this id, with or without the prefix of an API."""
        names = [request_id, *(request_id.removeprefix(each) for each in PREFIXES if request_id.startswith(each))]
        return next((self._by_id[each].packed for each in names if each in self._by_id), None)

    def latest(self, count: int) -> list[bytes]:
        """Return the packed facts of the latest requests of each kind, at most `count` of each."""
        rings = self._recent.records, self._notable.records
        return [ring[-1 - number].packed for ring in rings for number in range(min(count, len(ring)))]

    def _forget(self, record: Record) -> None:
        for each in record.ids:
            if self._by_id.get(each) is record:
                del self._by_id[each]
