"""Cache of the token ids of short pieces of prompts: system prompts, and turns of a conversation that is sent again."""

import threading
from array import array

MAX_PIECE_CHARS = 2_048  # longer pieces repeat rarely, and how long they take would tell whether they were sent before
MAX_CACHED_CHARS = 2 << 20  # of all pieces; at most 10 MB with their ids


class TurnCache:
    """Token ids by text. The oldest pieces are evicted first. Threads may share it."""

    __slots__ = ("_chars", "_ids", "_lock", "_max_chars")

    def __init__(self, max_chars: int = MAX_CACHED_CHARS) -> None:
        self._max_chars = max_chars
        self._chars = 0
        self._ids: dict[str, array[int]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._ids)

    def find(self, piece: str) -> "array[int] | None":
        """Return the ids of a piece, which the caller must not change. None if they are not cached."""
        return self._ids.get(piece)

    def add(self, piece: str, ids: "array[int]") -> None:
        """Cache the ids of a piece, unless it is too long."""
        if not 0 < len(piece) <= MAX_PIECE_CHARS:
            return
        with self._lock:
            if piece in self._ids:
                return
            self._ids[piece] = ids
            self._chars += len(piece)
            while self._chars > self._max_chars:
                oldest = next(iter(self._ids))
                del self._ids[oldest]
                self._chars -= len(oldest)
