"""Credential cache: results of recent checks by digest of the credential, bounded in number and time."""

from collections import OrderedDict
from typing import Generic, TypeVar

Result = TypeVar("Result")


class CredentialCache(Generic[Result]):
    """Keeps results by digest until their expiry. The least recently added results are evicted first."""

    def __init__(self, *, max_entries: int) -> None:
        self._max_entries = max_entries
        self._results: OrderedDict[bytes, tuple[Result, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._results)

    def find(self, digest: bytes, now: float) -> Result | None:
        found = self._results.get(digest)
        return found[0] if found and now < found[1] else None

    def put(self, digest: bytes, result: Result, expires_at: float) -> None:
        self._results[digest] = result, expires_at
        self._results.move_to_end(digest)
        if len(self._results) > self._max_entries:
            self._results.popitem(last=False)

    def clear(self) -> None:
        self._results.clear()
