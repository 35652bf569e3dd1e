"""The interface of a place for the contents of files. All methods block: they run in threads."""

from collections.abc import Iterator
from typing import Protocol


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

    def names(self) -> Iterator[str]:
        """Yield the names of all contents, for the deletion of those that no file has."""
