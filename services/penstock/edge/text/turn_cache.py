"""Cache of the token ids of short pieces of prompts: system prompts, and turns of a conversation that is sent again."""

import threading
from array import array

MAX_PIECE_CHARS = 2_048  # longer pieces repeat rarely, and how long they take would tell whether they were sent before
MAX_CACHED_BYTES = 8 << 20  # of all pieces with their ids
PIECE_BYTES = 256  # of the objects of a piece, beside its characters and ids
BYTES_PER_ID = BYTES_PER_CHAR = 4  # at most


class TurnCache:
    """Token ids by text. The oldest pieces are evicted first. Threads may share it."""

    __slots__ = ("_bytes", "_ids", "_lock", "_max_bytes")

    def __init__(self, max_bytes: int = MAX_CACHED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
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
            self._bytes += _size_bytes(piece, ids)
            while self._bytes > self._max_bytes:
                oldest = next(iter(self._ids))
                self._bytes -= _size_bytes(oldest, self._ids.pop(oldest))


def _size_bytes(piece: str, ids: "array[int]") -> int:
    return PIECE_BYTES + BYTES_PER_CHAR * len(piece) + BYTES_PER_ID * len(ids)
