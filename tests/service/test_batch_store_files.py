"""The store of batches: files, batches that read them, and idempotency keys."""

import pytest

from batch_stores import LEASE_S, store_of
from penstock.batch.store.errors import (
    BatchUnknown,
    FileInUse,
    FilesFull,
    FileUnknown,
    IdempotencyKeyReused,
    TooManyBatches,
)
from penstock.batch.store.operations import KEY_LIFE_S
from penstock.v1.batches_pb2 import FILE_PURPOSE_BATCH, FILE_PURPOSE_BATCH_OUTPUT


@pytest.fixture(params=["sqlite", "postgres"])
def store(request):
    with store_of(request) as found:
        yield found


def test_a_file_is_found_by_its_tenant_until_it_expires(store):
    store.file()
    assert store("find_file", "acme", "file-1").size_bytes == 100
    with pytest.raises(FileUnknown):
        store("find_file", "globex", "file-1")
    store.now += 1_000.0
    with pytest.raises(FileUnknown):
        store("find_file", "acme", "file-1")
    assert store("drop_expired_files", 10) == ["file-1"]


def test_the_bytes_of_a_tenant_are_bounded(store):
    store.file(size=900)
    with pytest.raises(FilesFull):
        store.file("file-2", size=101)
    store.file("file-2", tenant="globex", size=900)


def test_files_are_listed_in_pages_the_newest_first(store):
    for number in range(5):
        store.file(f"file-{number}", purpose=FILE_PURPOSE_BATCH_OUTPUT if number == 2 else FILE_PURPOSE_BATCH)
        store.now += number % 2  # two of them were created at one time
    ids = [f"file-{number}" for number in (4, 3, 2, 1, 0)]
    page, has_more = store("list_files", "acme", purpose=0, after="", limit=2)
    assert ([each.file_id for each in page], has_more) == (ids[:2], True)
    page, has_more = store("list_files", "acme", purpose=0, after="file-3", limit=10)
    assert ([each.file_id for each in page], has_more) == (ids[2:], False)
    page, _ = store("list_files", "acme", purpose=FILE_PURPOSE_BATCH_OUTPUT, after="", limit=10)
    assert [each.file_id for each in page] == ["file-2"]
    with pytest.raises(FileUnknown):
        store("list_files", "acme", purpose=0, after="nobody", limit=10)


def test_a_file_that_a_batch_reads_is_not_deleted(store):
    store.file()
    store.batch()
    with pytest.raises(FileInUse):
        store("delete_file", "acme", "file-1")
    store.now += 2_000.0
    assert store("drop_expired_files", 10) == []


def test_a_batch_needs_a_file_and_a_tenant_has_a_bounded_number(store):
    with pytest.raises(FileUnknown):
        store.batch()
    store.file()
    for number in range(3):
        store.batch(f"batch_{number}")
    with pytest.raises(TooManyBatches):
        store.batch("batch_3")
    page, has_more = store("list_batches", "acme", after="", limit=2)
    assert ([each.batch_id for each in page], has_more) == (["batch_2", "batch_1"], True)
    with pytest.raises(BatchUnknown):
        store.found(tenant="globex")


def test_a_repeated_call_with_an_idempotency_key_returns_the_first_batch_for_a_day(store):
    store.file(expires_at=store.now + 9 * KEY_LIFE_S)
    assert store.batch("batch_1", idempotency_key="k").batch_id == "batch_1"
    store.now += KEY_LIFE_S - 1.0
    assert store.batch("batch_2", idempotency_key="k").batch_id == "batch_1"
    assert store.batch("batch_3", idempotency_key="other").batch_id == "batch_3"
    store.now += 1.0
    assert store.batch("batch_4", idempotency_key="k").batch_id == "batch_4"
    assert store.batch("batch_5", idempotency_key="k").batch_id == "batch_4"
    page, _ = store("list_batches", "acme", after="", limit=9)
    assert [each.batch_id for each in page] == ["batch_4", "batch_3", "batch_1"]


def test_a_repeated_call_needs_no_file_and_no_room_for_a_batch(store):
    store.file()
    for number in range(3):
        store.batch(f"batch_{number}", idempotency_key=f"k{number}")
    assert store.batch("batch_3", idempotency_key="k0").batch_id == "batch_0"
    store("fail", store("claim_job", LEASE_S), "FILE_EMPTY", "no line")
    store.now += 1_000.0  # the file has expired
    assert store.batch("batch_3", idempotency_key="k0").batch_id == "batch_0"


@pytest.mark.parametrize(
    "changes",
    [{"window": 101.0}, {"endpoint": "/v1/responses"}, {"metadata": {}}, {"output_ttl": 501.0}, {"file_id": "file-2"}],
    ids=str,
)
def test_an_idempotency_key_of_a_call_with_other_fields_is_refused(store, changes):
    store.file()
    store.file("file-2")
    store.batch(idempotency_key="k")
    with pytest.raises(IdempotencyKeyReused, match="batch_1 was created"):
        store.batch("batch_2", idempotency_key="k", **changes)


def test_an_idempotency_key_is_that_of_one_tenant(store):
    store.file()
    store.file("file-2", tenant="globex")
    store.batch(idempotency_key="k")
    created = store.batch("batch_2", tenant="globex", file_id="file-2", idempotency_key="k")
    assert created.batch_id == "batch_2"


def test_a_call_that_fails_keeps_no_idempotency_key(store):
    with pytest.raises(FileUnknown):
        store.batch(idempotency_key="k")
    store.file()
    assert store.batch(idempotency_key="k", window=101.0).batch_id == "batch_1"
