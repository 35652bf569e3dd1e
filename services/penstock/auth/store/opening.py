"""Opening the store that the settings name."""

import asyncio
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import structlog

from penstock.auth.store.backend import Backend
from penstock.auth.store.disk_usage import Watermark
from penstock.auth.store.roll_up import KEEP_ALL, Retention, correctable_hours
from penstock.auth.store.sqlite.backend import SqliteBackend
from penstock.auth.store.store import ChargesNotPersisted, StoredState
from penstock.auth.store.threaded import ThreadedStore
from penstock.chassis.database.location import StoreLocation, parse_location

log = structlog.get_logger()


@asynccontextmanager
async def opened_store(
    location: str,
    *,
    fsync: bool = False,
    retention: Retention = KEEP_ALL,
    clock: Callable[[], float] = time.time,
    disk_watermark: float = 1.0,
    instance_id: str = "auth",
    address: str = "",
    reports_usage: bool = False,
) -> AsyncIterator[tuple[ThreadedStore, StoredState]]:
    """Open a store and yield it with its state. Leaving the block waits until all changes are written.

    `fsync` is for SQLite; a PostgreSQL server decides with `synchronous_commit`. Other replicas name `address` as that
    of this process. With `reports_usage`, the totals that charges change are marked for a report to the home region.
    Raises ChargesNotPersisted after the block if charges could not be written.
    """
    if reports_usage:
        retention = correctable_hours(retention)
    parsed, owner = parse_location(location), f"{instance_id}.{secrets.token_hex(4)}"  # also unique with one id
    backend = _backend(parsed, retention, owner, fsync=fsync, address=address, reports_usage=reports_usage)
    store = ThreadedStore(backend, clock, Watermark(disk_watermark))
    opened: asyncio.Future[StoredState] = asyncio.get_running_loop().create_future()
    thread = threading.Thread(target=store.run, args=(opened,), name="auth-store", daemon=True)
    thread.start()
    try:
        yield store, await opened
    finally:
        store.close()
        await asyncio.to_thread(thread.join)
        if store.unwritten:
            log.error("charges_not_persisted", count=store.unwritten)
    if store.unwritten:
        raise ChargesNotPersisted(
            f"{store.unwritten} charges were not written to {backend.name}; edges hold them and repeat them after the"
            " next start of auth. Make the store writable and start auth before the edges end"
        )


def _backend(
    location: StoreLocation, retention: Retention, owner: str, *, fsync: bool, address: str, reports_usage: bool
) -> Backend:
    if not location.is_postgres:
        return SqliteBackend(location.path, retention, fsync=fsync, reports_usage=reports_usage)
    from penstock.auth.store.postgres.backend import PostgresBackend  # noqa: PLC0415  # its driver loads only if used

    return PostgresBackend(location, retention, owner, address=address, reports_usage=reports_usage)
