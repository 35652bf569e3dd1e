"""Bodies on their way in, before anything is known of who sends them."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.chassis.errors import Overloaded

RETRY_AFTER_S = 1.0  # s


class PendingBody:
    """One of them, as far as it has come."""

    def __init__(self, budget: "BodyBudget") -> None:
        self.size = 0
        self._budget = budget

    def add(self, size: int) -> None:
        self._budget.check_room(size)
        self._budget.held_bytes += size
        self.size += size


class BodyBudget:
    """Bounds the bytes of all bodies together: the bound on requests counts them only once they are parsed."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0

    def __repr__(self) -> str:
        return f"<Intake {self.held_bytes}/{self.max_bytes} bytes>"

    @contextmanager
    def body(self) -> Iterator[PendingBody]:
        body = PendingBody(self)
        try:
            yield body
        finally:
            self.held_bytes -= body.size

    def check_room(self, size: int) -> None:
        """Raise Overloaded when there is no room for `size` bytes more."""
        if self.held_bytes + size > self.max_bytes:
            text = f"this edge is reading {self.held_bytes} bytes of requests and takes no more now"
            raise Overloaded(text, reason="EDGE_FULL", retry_after=RETRY_AFTER_S)
