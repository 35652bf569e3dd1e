"""Opening the store of responses beside the store that the settings name."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from penstock.auth.store.responses.backend import ResponseBackend
from penstock.auth.store.responses.operations import ResponseOperations
from penstock.auth.store.responses.sqlite import SqliteResponses
from penstock.auth.store.responses.store import ThreadedResponseStore
from penstock.auth.store.responses.thread import CallThread
from penstock.chassis.database.location import StoreLocation, parse_location


@asynccontextmanager
async def opened_responses(
    location: str,
    operations: ResponseOperations,
    *,
    clock: Callable[[], float],
    fsync: bool = False,
) -> AsyncIterator[ThreadedResponseStore]:
    """Open the store of responses of the store at `location`, which is open. Leaving the block performs pending calls.

    `clock` and `fsync` are for SQLite.
    """
    found = parse_location(location)
    backends: list[ResponseBackend] = []
    if found.is_postgres:
        backends += _postgres_backends(found, operations)
    else:
        backends.append(SqliteResponses(found.path, operations, clock, fsync=fsync))
    threads = [CallThread(each, has_upkeep=number == 0) for number, each in enumerate(backends)]
    store = ThreadedResponseStore(threads)
    async with AsyncExitStack() as stack:
        for number, each in enumerate(threads):
            each.on_results, each.on_totals = store.on_results, store.on_totals
            await each.start(f"auth-responses-{number}")
            stack.push_async_callback(each.stop)
        yield store


def _postgres_backends(location: StoreLocation, operations: ResponseOperations) -> Sequence[ResponseBackend]:
    from penstock.auth.store.responses.postgres import (  # noqa: PLC0415  # its driver loads only if used
        CONNECTIONS,
        PostgresResponses,
    )

    return [PostgresResponses(location, operations) for _ in range(CONNECTIONS)]
