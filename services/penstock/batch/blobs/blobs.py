"""The interface of a place for the contents of files. All methods block: they run in threads."""

import re
from collections.abc import Sequence
from typing import Protocol

NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")  # of a content


class BlobUnavailable(Exception):
    """The place cannot be reached, or is full."""


class BlobWriter(Protocol):
    """Writes one content. It exists for readers once `commit` has returned."""

    def write(self, content: bytes) -> None:
        """Raises BlobUnavailable."""

    def commit(self) -> None:
        """Make the content durable. Raises BlobUnavailable."""

    def abort(self) -> None:
        """Drop what was written. No effect after `commit`."""


class Blobs(Protocol):
    """Contents by name: letters, digits, `-` and `_`."""

    def create(self, name: str) -> BlobWriter:
        """Raises BlobUnavailable."""

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return at most `size` bytes from `offset` on; fewer at the end. Raises BlobUnavailable."""

    def delete(self, name: str) -> None:
        """No effect if there is none. Raises BlobUnavailable."""

    def names(self, older_than: float) -> Sequence[str]:
        """Return the names of contents that were written before `older_than` (Unix s). Raises BlobUnavailable."""

    def free_bytes(self) -> float:
        """Return the bytes that are left. Raises BlobUnavailable."""

    def used_share(self) -> float:
        """Return the share of the volume that is used; 0 without a volume. Raises BlobUnavailable."""

    def delete_parts(self, older_than: float) -> int:
        """Delete what processes that died have left, last written before `older_than` (Unix s). Return their number."""
