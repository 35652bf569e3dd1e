"""Statements for both databases: a value is written as `?`, and SQLite ignores the locks of rows."""

from collections.abc import Sequence
from typing import Any, Protocol

Row = tuple[Any, ...]


class Transaction(Protocol):
    """An open transaction of one database. Its methods raise the errors of the database's driver."""

    @property
    def now(self) -> float:
        """Unix time in s of the clock that all processes over this database share."""

    def run(self, statement: str, *values: object) -> list[Row]:
        """Run a statement. Return its rows."""

    def run_many(self, statement: str, values: Sequence[Sequence[object]]) -> list[Row]:
        """Run a statement for each list of values, in one round trip. Return all rows, in any order."""

    def write(self, statement: str, values: Sequence[Sequence[object]]) -> None:
        """Run a statement for each list of values before the next statement or the commit."""
