"""The interface of connections that read usage beside the store's own connection, each for one statement."""

from collections.abc import Callable
from typing import Protocol

from penstock.auth.store.rows import Row


class QueryTimeout(Exception):
    """The statement took longer than its limit, or was cancelled."""


class QueryFailed(Exception):
    """The store could not be read."""


class UsageConnection(Protocol):
    """A connection for one statement, in one thread."""

    def rows(self, statement: str, values: dict[str, object]) -> list[Row]:
        """Run a statement. Raises QueryTimeout or QueryFailed."""

    def cancel(self) -> None:
        """End the statement that another thread runs, soon."""

    def close(self) -> None: ...


Connect = Callable[[float], UsageConnection]  # limit of the statement in s; raises QueryFailed
