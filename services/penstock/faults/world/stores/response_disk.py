"""Stored responses of a world: one database for all auth processes. Committed calls survive a process."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from penstock.auth.responses.errors import ResponseStoreUnavailable
from penstock.auth.responses.messages import failed
from penstock.auth.store.responses.operations import ResponseOperations
from penstock.auth.store.responses.sqlite import SqliteResponses
from penstock.auth.store.responses.thread import Caller, OnResult
from penstock.chassis.database.location import MEMORY
from penstock.mesh.v1.responses_pb2 import StoreCall, StoreResult

COMMIT_DELAY_S = (0.0002, 0.004)  # range of s


@dataclass(eq=False)
class ResponseDisk:
    """One SQLite database in memory, with auth's own tables and operations."""

    rng: random.Random
    clock: Callable[[], float]  # of the database
    is_full: Callable[[], bool]
    database: SqliteResponses | None = None

    @asynccontextmanager
    async def open_store(
        self, path: str, operations: ResponseOperations, **settings: object
    ) -> AsyncIterator["WorldResponseStore"]:
        """Replace auth's `opened_responses`. No response expires."""
        del path, settings
        self.database = self.database or SqliteResponses(MEMORY, operations, self.clock)
        yield WorldResponseStore(self, self.database, asyncio.get_running_loop())

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement; none if no process has opened the store."""
        if self.database is None:
            return []
        return self.database._connected().execute(statement).fetchall()  # noqa: SLF001  # of a check, outside of auth


@dataclass(eq=False)
class WorldResponseStore:
    """The store of one process: a call is committed at once, and its result takes time."""

    disk: ResponseDisk
    database: SqliteResponses
    loop: asyncio.AbstractEventLoop
    pending: int = 0

    @property
    def figures(self) -> Mapping[str, float]:
        return {"response_calls_pending": self.pending}

    def perform(self, call: StoreCall, caller: Caller, on_result: OnResult) -> None:
        del caller
        self.pending += 1
        if self.disk.is_full():
            result = failed(call.call_id, ResponseStoreUnavailable("database or disk is full"))
        else:
            (result,) = self.database.perform([call])
        # The process may die here, between the commit and the callback.
        self.loop.call_later(self.disk.rng.uniform(*COMMIT_DELAY_S), self._report, result, on_result)

    def _report(self, result: StoreResult, on_result: OnResult) -> None:
        self.pending -= 1
        on_result(result)

    async def delete_of_tenant(self, tenant_id: str) -> None:
        while self.database.delete_of_tenant(tenant_id):
            pass

    async def watch(self) -> None:
        """Wait until cancelled. Each call has a result at once."""
        await asyncio.Event().wait()
