"""Stores of batches for tests, on either database, with the time of the test."""

from contextlib import contextmanager
from dataclasses import dataclass, replace

from penstock.batch.jobs.batch import Batch
from penstock.batch.jobs.chunks import LineResult
from penstock.batch.store import jobs
from penstock.batch.store.jobs import Chunk
from penstock.batch.store.operations import BatchOperations, StoredFile
from penstock.batch.store.postgres import PostgresDatabase
from penstock.batch.store.sqlite import SqliteDatabase
from penstock.chassis.database.location import parse_location
from penstock.v1.batches_pb2 import FILE_PURPOSE_BATCH
from stores import administer

LEASE_S = 10.0
EMPTY_TABLES = "TRUNCATE files, batches, chunks, results RESTART IDENTITY CASCADE"


@dataclass
class SetClock:
    """Unix time that a test sets, s."""

    now: float = 1_000.0

    def __call__(self):
        return self.now


class TimedPostgres(PostgresDatabase):
    """A database whose time is that of a clock."""

    def __init__(self, url, clock):
        super().__init__(parse_location(url))
        self._clock = clock

    @contextmanager
    def transaction(self):
        with super().transaction() as found:
            yield replace(found, now=self._clock())  # what it has not sent is that of `found`


def empty_database(url, clock):
    """Return a database of PostgreSQL without a row."""
    database = TimedPostgres(url, clock)
    database.open()
    administer(url, EMPTY_TABLES)
    return database


def memory_database(clock):
    database = SqliteDatabase(":memory:", clock)
    database.open()
    return database


class StoreOperations:
    """Calls one operation in a transaction."""

    def __init__(self, database, clock):
        self.database = database
        self.clock = clock
        self.operations = BatchOperations(file_bytes_per_tenant=1_000, batches_per_tenant=3)

    @property
    def now(self):
        return self.clock.now

    @now.setter
    def now(self, now):
        self.clock.now = now

    def __call__(self, name, *arguments, **named):
        with self.database.transaction() as transaction:
            return (getattr(jobs, name, None) or getattr(self.operations, name))(transaction, *arguments, **named)

    def claim(self, limit, lease_s=LEASE_S):
        return self("claim", limit, lease_s).chunks

    def file(self, file_id="file-1", tenant="acme", size=100, **changes):
        given = StoredFile(file_id, tenant, "lines.jsonl", FILE_PURPOSE_BATCH, size, self.now, self.now + 1_000.0)
        self("add_file", given._replace(**changes))

    def batch(self, batch_id="batch_1", *, idempotency_key="", **fields):
        return self("create", self.new_batch(batch_id, **fields), idempotency_key)

    def new_batch(self, batch_id="batch_1", tenant="acme", file_id="file-1", **changes):
        given = {
            "key_id": "k",
            "delegation": b"d",
            "endpoint": "/v1/embeddings",
            "window": 100.0,
            "output_ttl": 500.0,
            "metadata": {"a": "b"},
            **changes,
        }
        return Batch(batch_id=batch_id, tenant_id=tenant, input_file_id=file_id, created_at=self.now, **given)

    def divided(self, chunks=2, lines=3, **batch):
        """A batch that runs, with chunks of `lines` lines."""
        self.batch(**batch)
        job = self("claim_job", LEASE_S)
        self("divide", job, [Chunk(number * lines, lines, number * 30, 30) for number in range(chunks)], chunks * lines)

    def found(self, batch_id="batch_1", tenant="acme"):
        return self("find", tenant, batch_id)


def result(chunk, number, *, is_error=False, epoch=None):
    return LineResult(chunk.key, epoch or chunk.epoch, number, is_error, b"{%d}" % number, 2, 3)


def results(chunk):
    first = chunk.key.first_line
    return [result(chunk, number) for number in range(first, first + chunk.line_count)]


@contextmanager
def store_of(request):
    """A store on the database that the parameter of a fixture names, without a row."""
    clock = SetClock()
    is_postgres = request.param == "postgres"
    database = (
        empty_database(request.getfixturevalue("batch_database"), clock) if is_postgres else memory_database(clock)
    )
    yield StoreOperations(database, clock)
    database.close()
