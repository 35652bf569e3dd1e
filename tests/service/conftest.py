"""Shared by service tests: a receiver of telemetry, whose providers are set once in a process, and PostgreSQL."""

import pytest

from otlp_receiver import otlp_receiver
from penstock.chassis.observability.telemetry import open_telemetry
from response_calls import ResponseTables, response_client, wait_longer
from stores import PostgresStore, SqliteStore, new_database, postgres_server


@pytest.fixture(scope="session")
def receiver():
    """A receiver of this process's spans and metrics; select by the trace ID of the test."""
    with pytest.MonkeyPatch.context() as patch, otlp_receiver() as found:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")  # ms
        patch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")  # ms
        telemetry = open_telemetry("test", "test-1", otlp_endpoint=found.endpoint)
        yield found
        telemetry.shutdown()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory):
    """A real PostgreSQL server."""
    with postgres_server(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture
def database(postgres):
    """The URL of an empty database."""
    with new_database(postgres) as url:
        yield url


@pytest.fixture(scope="session")
def batch_database(postgres):
    """The URL of a database of batches, which each test empties; a new one would take longer."""
    with new_database(postgres) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def stored(request, tmp_path):
    """A store of each kind."""
    if request.param == "sqlite":
        return SqliteStore(str(tmp_path / "auth.sqlite"))
    return PostgresStore(request.getfixturevalue("database"))


@pytest.fixture
def response_tables(stored, monkeypatch):
    """The tables of stored responses in a new store of each kind."""
    wait_longer(monkeypatch)
    tables = ResponseTables(stored)
    tables.prepare()
    return tables


@pytest.fixture
async def call_store(response_tables):
    """Calls the service of stored responses."""
    async with response_client(response_tables.stored.location) as client:
        yield client
