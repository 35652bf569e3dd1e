"""Bodies on their way in, before anything is known of who sends them."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.chassis.errors import Overloaded

RETRY_AFTER = 1.0  # s


class Body:
    """One of them, as far as it has come."""

    def __init__(self, intake: "Intake") -> None:
        self.size = 0
        self._intake = intake

    def add(self, size: int) -> None:
        self._intake.check(size)
        self._intake.held += size
        self.size += size


class Intake:
    """Bounds the bytes of all bodies together: the bound on requests counts them only once they are parsed."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    def __repr__(self) -> str:
        return f"<Intake {self.held}/{self.most} bytes>"

    @contextmanager
    def body(self) -> Iterator[Body]:
        body = Body(self)
        try:
            yield body
        finally:
            self.held -= body.size

    def check(self, size: int) -> None:
        """Raise Overloaded when there is no room for `size` bytes more."""
        if self.held + size > self.most:
            text = f"this edge is reading {self.held} bytes of requests and takes no more now"
            raise Overloaded(text, reason="EDGE_FULL", retry_after=RETRY_AFTER)
