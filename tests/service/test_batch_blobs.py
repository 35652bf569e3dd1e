"""Places for the contents of batches: a folder, and a bucket of a real S3 server. They behave alike."""

import sys
import time
from copy import copy
from itertools import count

import pytest

from penstock.batch.blobs import bucket as bucket_module
from penstock.batch.blobs.blobs import BlobUnavailable
from penstock.batch.blobs.bucket import PART_BYTES, BucketBlobs
from penstock.batch.blobs.bucket_location import BucketLocation, parse_bucket
from penstock.batch.blobs.folder import FolderBlobs
from penstock.batch.config import BatchConfig
from penstock.batch.store.opening import opened_store
from penstock.batch.store.operations import StoredFile
from penstock.chassis.database.errors import StoreUnusable
from penstock.v1.batches_pb2 import FILE_PURPOSE_BATCH
from s3_server import new_bucket, s3_server, use_server

LATER = 1e12  # after every time
EARLIER = 1e9  # before every time; the server has one for all uploads in parts
numbers = count()


@pytest.fixture(scope="module")
def server():
    with s3_server() as url:
        yield url


@pytest.fixture(scope="module")
def storage(server):
    """A place that is opened once, because a client takes 0.3 s."""
    with pytest.MonkeyPatch.context() as patch:
        use_server(patch, server)
        return BucketBlobs(BucketLocation(new_bucket(server), ""))


@pytest.fixture
def bucket_blobs(storage):
    """A place of its own in the bucket."""
    found = copy(storage)
    found._location = BucketLocation(storage._location.bucket, f"some/prefix-{next(numbers)}/")
    return found


@pytest.fixture(params=["folder", "bucket"])
def blobs(request, tmp_path):
    if request.param == "folder":
        return FolderBlobs(tmp_path / "contents")
    return request.getfixturevalue("bucket_blobs")


@pytest.fixture
def bucket(server, monkeypatch):
    use_server(monkeypatch, server)
    return new_bucket(server)


def put(blobs, name, *parts):
    writer = blobs.create(name)
    for each in parts:
        writer.write(each)
    writer.commit()


def test_a_content_is_read_from_any_offset_once_it_is_whole(blobs):
    writer = blobs.create("file-1")
    writer.write(b"0123")
    with pytest.raises(BlobUnavailable):
        blobs.read("file-1", 0, 9)
    writer.write(b"456789")
    writer.commit()
    writer.abort()  # of no effect
    assert blobs.read("file-1", 0, 4) == b"0123"
    assert blobs.read("file-1", 4, 100) == b"456789"
    assert blobs.read("file-1", 9, 0) == b""
    assert blobs.read("file-1", 10, 5) == b""


def test_a_content_may_be_empty(blobs):
    put(blobs, "file-1")
    assert blobs.read("file-1", 0, 9) == b""
    assert list(blobs.names(LATER)) == ["file-1"]


def test_a_content_of_several_parts_is_whole(blobs):
    content = bytes(range(256)) * 4_096  # 1 MiB
    put(blobs, "file-1", *[content] * 17)
    whole = content * 17
    assert blobs.read("file-1", 0, len(whole) + 1) == whole
    assert blobs.read("file-1", PART_BYTES - 3, 6) == whole[PART_BYTES - 3 : PART_BYTES + 3]


def test_an_aborted_content_leaves_nothing(blobs):
    writer = blobs.create("file-1")
    for _ in range(3):
        writer.write(b"x" * PART_BYTES)
    writer.abort()
    assert list(blobs.names(LATER)) == []
    assert blobs.delete_parts(LATER) == 0


def test_parts_of_a_process_that_died_are_deleted_once_they_are_old(blobs):
    left = blobs.create("file-1")
    left.write(b"x" * PART_BYTES)
    put(blobs, "file-2", b"whole")
    assert blobs.delete_parts(EARLIER) == 0
    assert blobs.delete_parts(LATER) == 1
    assert blobs.delete_parts(LATER) == 0
    assert list(blobs.names(LATER)) == ["file-2"]
    left.abort()


def test_contents_are_deleted_and_listed_by_age(blobs):
    for number in range(3):
        put(blobs, f"file-{number}", b"x")
    blobs.delete("file-1")
    blobs.delete("file-1")
    assert sorted(blobs.names(LATER)) == ["file-0", "file-2"]
    assert list(blobs.names(time.time() - 3_600.0)) == []


def test_a_place_knows_what_is_left(blobs):
    assert blobs.free_bytes() > 0
    assert 0 <= blobs.used_share() <= 1


def test_a_name_is_no_path(blobs):
    for name in ("../file", "a/b", "", "x" * 129):
        with pytest.raises(ValueError, match="no name"):
            blobs.read(name, 0, 1)


def test_an_upload_keeps_one_part_in_memory_and_sends_the_others(bucket_blobs):
    writer = bucket_blobs.create("file-1")
    for _ in range(20):
        writer.write(b"x" * (1 << 20))
        assert len(writer._unsent) < PART_BYTES  # it has no other content
    assert len(writer._parts) == 2
    writer.commit()
    assert len(bucket_blobs.read("file-1", 0, 1 << 30)) == 20 << 20


def test_places_of_one_bucket_are_apart(storage, bucket_blobs):
    put(storage, "file-1", b"1")
    put(bucket_blobs, "file-2", b"2")
    assert (list(storage.names(LATER)), list(bucket_blobs.names(LATER))) == (["file-1"], ["file-2"])


def test_a_server_that_is_away_is_an_error_in_a_bounded_time(monkeypatch):
    monkeypatch.setattr(bucket_module, "ATTEMPTS", 1)
    with s3_server() as url:
        use_server(monkeypatch, url)
        blobs = BucketBlobs(BucketLocation(new_bucket(url), ""))
        writer = blobs.create("file-1")
        writer.write(b"x" * PART_BYTES)
    for work in (
        lambda: blobs.read("file-2", 0, 1),
        lambda: writer.write(b"x" * PART_BYTES),
        writer.commit,
        lambda: blobs.delete("file-2"),
        lambda: blobs.names(LATER),
        lambda: blobs.delete_parts(LATER),
    ):
        with pytest.raises(BlobUnavailable):
            work()
    writer.abort()  # of no effect


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("s3://bucket", BucketLocation("bucket", "")),
        ("s3://bucket/", BucketLocation("bucket", "")),
        ("s3://my.bucket/one/two/", BucketLocation("my.bucket", "one/two/")),
    ],
)
def test_a_setting_names_a_bucket_and_a_prefix(text, location):
    assert parse_bucket(text) == location


@pytest.mark.parametrize("text", ["bucket", "s3://", "s3://a", "s3://Bucket", "s3://bucket//x", "http://bucket/x"])
def test_a_setting_that_names_no_bucket_stops_the_start(text):
    with pytest.raises(ValueError, match="bucket must be s3://"):
        BatchConfig(bucket=text)


async def test_a_store_keeps_its_contents_in_the_bucket_of_its_settings(bucket, tmp_path):
    config = BatchConfig(store=":memory:", folder=str(tmp_path / "unused"), bucket=f"s3://{bucket}/lane")

    async def contents():
        yield b"{}\n" * 10

    with opened_store(config, lambda: 1.0) as store:
        file = StoredFile("file-1", "acme", "lines", FILE_PURPOSE_BATCH, 0, 1.0, 9.0)
        stored = await store.add_file(file, contents())
        assert b"".join([each async for each in store.read_file(stored)]) == b"{}\n" * 10
        await store.delete_file("acme", "file-1")
        assert list(store.blobs.names(LATER)) == []
    assert not (tmp_path / "unused").exists()


def test_a_bucket_without_its_package_stops_the_start(monkeypatch):
    monkeypatch.delitem(sys.modules, "penstock.batch.blobs.bucket")
    monkeypatch.setitem(sys.modules, "botocore", None)
    config = BatchConfig(store=":memory:", bucket="s3://bucket")
    with pytest.raises(StoreUnusable, match=r"penstock\[s3\]"), opened_store(config, lambda: 1.0):
        pass


def test_a_bucket_that_does_not_exist_stops_the_start(bucket, tmp_path):
    config = BatchConfig(store=":memory:", bucket="s3://nobody")
    with pytest.raises(StoreUnusable, match="place of contents"), opened_store(config, lambda: 1.0):
        pass
