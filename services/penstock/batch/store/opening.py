"""Opens the store that the settings name."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.batch.blobs.blobs import Blobs, BlobUnavailable
from penstock.batch.blobs.bucket_location import parse_bucket
from penstock.batch.blobs.folder import FolderBlobs
from penstock.batch.config import BatchConfig
from penstock.batch.store.operations import BatchOperations
from penstock.batch.store.sqlite import SqliteDatabase
from penstock.batch.store.store import BatchStore, Database
from penstock.chassis.database.errors import StoreUnusable


@contextmanager
def opened_store(config: BatchConfig, clock: Callable[[], float]) -> Iterator[BatchStore]:
    """Open the store, and close it after the block. Raises StoreUnusable, StoreTooNew and StoreUnavailable.

    clock: Unix time, s; that of PostgreSQL is its own.
    """
    database = _database(config, clock)
    operations = BatchOperations(config.file_bytes_per_tenant, config.batches_per_tenant)
    try:
        database.open()
        now = database_clock(database, clock)
        yield BatchStore(database, _blobs(config), operations, now, config.max_file_bytes)
    finally:
        database.close()


def database_clock(database: Database, clock: Callable[[], float]) -> Callable[[], float]:
    """Return `clock` put to the time of the database, because a window begins by the one and ends by the other.

    Raises StoreUnavailable.
    """
    with database.transaction() as transaction:
        offset = transaction.now - clock()
    return lambda: clock() + offset


def _database(config: BatchConfig, clock: Callable[[], float]) -> Database:
    location = config.store_location
    if not location.is_postgres:
        return SqliteDatabase(location.path, clock, fsync=config.fsync)
    from penstock.batch.store.postgres import PostgresDatabase  # noqa: PLC0415  # its driver loads only if used

    return PostgresDatabase(location)


def _blobs(config: BatchConfig) -> Blobs:
    try:
        if not config.bucket:
            return FolderBlobs(Path(config.folder))
        from penstock.batch.blobs.bucket import BucketBlobs  # noqa: PLC0415  # an extra

        return BucketBlobs(parse_bucket(config.bucket))
    except ModuleNotFoundError as error:
        raise StoreUnusable(f"a bucket needs a package ({error.name}): run `pip install 'penstock[s3]'`") from None
    except BlobUnavailable as error:
        raise StoreUnusable(f"the place of contents cannot be used: {error}") from None
