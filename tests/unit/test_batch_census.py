"""The census of batches: states, lines that are left, and the end that is expected."""

import pytest

from penstock.batch.blobs.blobs import BlobUnavailable
from penstock.batch.census import Census, CensusTaker, take_census
from penstock.batch.config import BatchConfig
from penstock.batch.jobs.batch import Batch, Status
from penstock.batch.metrics import OBSERVED_FIGURES, observations
from penstock.batch.series import BATCHES, TIME_LEFT
from penstock.batch.store import statements as sql
from penstock.batch.store.errors import StoreUnavailable
from penstock.batch.store.opening import opened_store

NOW = 1_000.0


def batch(number, status, **fields):
    whose = {"tenant_id": "acme", "key_id": "k", "delegation": b"d", "input_file_id": "file-1", "endpoint": "/"}
    times = {"window": 3_600.0, "output_ttl": 900.0, "created_at": 800.0, "started_at": 900.0}
    return Batch(batch_id=f"batch_{number}", status=status, **whose, **times, **fields)


BATCHES_OF_STORE = (
    batch(1, Status.IN_PROGRESS, lines=100, completed=19, failed=1),
    batch(2, Status.IN_PROGRESS, lines=100, completed=50),
    batch(3, Status.CANCELLING, lines=100, completed=50),
    batch(4, Status.COMPLETED, lines=100, completed=100),
)


@pytest.fixture
def store(tmp_path):
    with opened_store(BatchConfig(store=":memory:", folder=str(tmp_path)), lambda: NOW) as opened:
        with opened.database.transaction() as transaction:
            transaction.write(sql.ADD_BATCH, [sql.new_row(each, "") for each in BATCHES_OF_STORE])
        yield opened


async def test_only_batches_in_progress_have_lines_that_are_left(store):
    found = (await store.run(take_census)).figures
    assert found["lines_left"] == 80 + 50
    assert (found["batches_in_progress"], found["batches_cancelling"], found["batches_completed"]) == (2, 1, 1)
    assert found["batches_failed"] == 0


async def test_the_time_left_is_that_of_the_slowest_batch_at_its_speed_so_far(store):
    """Batch 1 has done 20 lines in 100 s and has 80 left; batch 2 has done 50 and has 50 left."""
    census = await store.run(take_census)
    assert census.figures["time_left_s"] == pytest.approx(400.0)
    assert [row["time_left_s"] for row in census.tables["batches"]] == pytest.approx([400.0, 100.0, 0.0])
    assert [row["state"] for row in census.tables["batches"]] == ["in_progress", "in_progress", "cancelling"]


def test_a_census_of_an_empty_store_has_each_figure():
    found = Census().figures
    assert found["time_left_s"] == found["lines_left"] == found["file_bytes"] == 0
    assert sum(name.startswith("batches_") for name in found) == len(Status)


async def test_the_used_share_of_the_volume_is_that_of_the_files(store, monkeypatch):
    taker = CensusTaker(store)
    monkeypatch.setattr(store.blobs, "used_share", lambda: 0.93)
    await taker.look()
    assert taker.figures["disk_used"] == 0.93

    def fail():
        raise BlobUnavailable("the volume is away")

    monkeypatch.setattr(store.blobs, "used_share", fail)
    await taker.look()
    assert (taker.figures["disk_used"], taker.figures["store_available"]) == (0.93, False)


async def test_a_store_that_is_away_keeps_the_latest_figures(store, monkeypatch):
    taker = CensusTaker(store)
    await taker.look()
    assert taker.figures["store_available"]

    def fail(_):
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr("penstock.batch.census.take_census", fail)
    await taker.look()
    assert not taker.figures["store_available"]
    assert taker.figures["lines_left"] == 130


async def test_each_state_and_figure_is_exported(store):
    figures = dict.fromkeys(OBSERVED_FIGURES, 0.0) | (await store.run(take_census)).figures
    found = list(observations(figures))
    assert len(found) == len(OBSERVED_FIGURES) + len(Status)
    assert {each.labels[0]: each.value for each in found if each.series is BATCHES}["in_progress"] == 2
    assert [each.value for each in found if each.series is TIME_LEFT] == pytest.approx([400.0])
