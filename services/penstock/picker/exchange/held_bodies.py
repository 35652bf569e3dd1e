"""The bodies that all streams hold until their endpoints are known, in bytes."""

from penstock.picker.errors import BodiesFull


class HeldBodies:
    """Bounds the sum."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.size = 0

    def __repr__(self) -> str:
        return f"<HeldBodies {self.size} of {self._max_bytes} bytes>"

    def take(self, size: int) -> None:
        """Raises BodiesFull, and takes nothing, beyond the limit."""
        if self.size + size > self._max_bytes:
            raise BodiesFull(self._max_bytes)
        self.size += size

    def give(self, size: int) -> None:
        self.size -= size
