"""Opens the store that the settings name."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.batch.blobs.folder import FolderBlobs
from penstock.batch.config import BatchConfig
from penstock.batch.store.operations import BatchOperations
from penstock.batch.store.sqlite import SqliteDatabase
from penstock.batch.store.store import BatchStore


@contextmanager
def opened_store(config: BatchConfig, clock: Callable[[], float]) -> Iterator[BatchStore]:
    """Open the store, and close it after the block. Raises StoreUnavailable and BlobUnavailable.

    clock: Unix time, s.
    """
    database = SqliteDatabase(config.store, clock, fsync=config.fsync)
    operations = BatchOperations(config.file_bytes_per_tenant, config.batches_per_tenant)
    try:
        with database.transaction():  # opens and migrates the file
            pass
        yield BatchStore(database, FolderBlobs(Path(config.folder)), operations, clock, config.max_file_bytes)
    finally:
        database.close()
