"""The form of an upload, in pieces of any size, and the objects of files and batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.openai.batches.objects import batch_object, file_object, page_request, parse_batch, window_of
from penstock.edge.api.openai.batches.upload import MAX_FIELD_BYTES, FormInvalid, UploadForm
from penstock.edge.api.openai.body.fields import Fields
from penstock.v1 import batches_pb2 as pb

BOUNDARY = "x-boundary"
KIND = f"multipart/form-data; boundary={BOUNDARY}"


def form(*parts):
    """A body with parts of name, filename (None: a field) and content."""
    body = b""
    for name, filename, content in parts:
        named = f'; filename="{filename}"' if filename is not None else ""
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
        body += head.encode() + content + b"\r\n"
    return body + f"--{BOUNDARY}--\r\n".encode()


def parsed(body, size):
    """The file and the header of a body that arrives in pieces of `size` bytes."""
    upload, content = UploadForm(KIND), b""
    for start in range(0, len(body), size):
        content += b"".join(upload.feed(body[start : start + size]))
    return content, upload.finish()


@given(st.binary(max_size=300), st.integers(1, 400))
def test_a_file_arrives_whole_in_pieces_of_any_size(content, size):
    body = form(("purpose", None, b"batch"), ("file", "lines.jsonl", content))
    found, header = parsed(body, size)
    assert (found, header.filename, header.purpose) == (content, "lines.jsonl", pb.FILE_PURPOSE_BATCH)


def test_the_fields_may_follow_the_file():
    body = form(
        ("file", "a", b"1"),
        ("purpose", None, b"batch"),
        ("expires_after[anchor]", None, b"created_at"),
        ("expires_after[seconds]", None, b"3600"),
    )
    _, header = parsed(body, 10)
    assert header.ttl.seconds == 3_600


@pytest.mark.parametrize(
    "body",
    [
        form(("purpose", None, b"batch")),
        form(("purpose", None, b"assistants"), ("file", "a", b"1")),
        form(("file", "a", b"1")),
        form(("purpose", None, b"batch"), ("file", "a", b"1"), ("file", "b", b"2")),
        form(("purpose", None, b"x" * (MAX_FIELD_BYTES + 1)), ("file", "a", b"1")),
        form(*(("f" + str(number), None, b"1") for number in range(20))),
        form(("purpose", None, b"batch"), ("file", "a", b"1"), ("expires_after[seconds]", None, b"-1")),
        b"no form",
        form(("purpose", None, b"batch"), ("file", "a", b"1"))[:-20],
    ],
)
def test_a_form_that_is_no_upload_is_refused(body):
    with pytest.raises(InvalidArgument):
        parsed(body, 50)


@pytest.mark.parametrize("kind", ["", "application/json", "multipart/form-data", "multipart/mixed; boundary=x"])
def test_a_body_of_another_type_is_refused(kind):
    with pytest.raises(FormInvalid):
        UploadForm(kind)


@pytest.mark.parametrize(("text", "seconds"), [("24h", 86_400), ("1m", 60), ("7d", 604_800)])
def test_a_completion_window_has_a_unit(text, seconds):
    assert window_of(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "0h", "8d", "24", "1s", "-1h", "999999h", "²h"])
def test_another_completion_window_is_refused(text):
    with pytest.raises(InvalidArgument):
        window_of(text)


def test_the_body_of_a_batch_becomes_a_call():
    request = parse_batch(Fields({"endpoint": "/v1/embeddings", "input_file_id": "file-1", "metadata": {"a": "b"}}))
    assert (request.endpoint, request.input_file_id, dict(request.metadata)) == ("/v1/embeddings", "file-1", {"a": "b"})
    assert request.completion_window.seconds == 86_400


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"endpoint": "/v1/images"}, "endpoint"),
        ({"input_file_id": ""}, "input_file_id"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"completion_window": "1y"}, "completion_window"),
    ],
)
def test_a_batch_with_a_wrong_field_is_refused_by_name(changes, field):
    with pytest.raises(InvalidArgument) as caught:
        parse_batch(Fields({"endpoint": "/v1/embeddings", "input_file_id": "file-1", **changes}))
    assert caught.value.field_violations[0].field == field


def test_a_batch_is_shown_as_openai_shows_it():
    batch = pb.Batch(id="batch_1", status=pb.BATCH_STATUS_CANCELLED, endpoint="/v1/embeddings", input_file_id="file-1")
    batch.create_time.seconds, batch.end_time.seconds, batch.completion_window.seconds = 10, 20, 86_400
    batch.lines.total, batch.lines.completed = 3, 2
    found = batch_object(batch)
    assert (found["status"], found["cancelled_at"], found["completed_at"]) == ("cancelled", 20, None)
    assert found["request_counts"] == {"total": 3, "completed": 2, "failed": 0}
    assert (found["completion_window"], found["output_file_id"], found["metadata"]) == ("24h", None, None)


def test_a_file_is_shown_as_openai_shows_it():
    file = pb.File(id="file-1", filename="a", purpose=pb.FILE_PURPOSE_BATCH_OUTPUT, size_bytes=5)
    file.create_time.seconds = 7
    found = file_object(file)
    assert (found["bytes"], found["purpose"], found["created_at"], found["expires_at"]) == (5, "batch_output", 7, None)


@pytest.mark.parametrize(
    ("query", "kind", "expected"),
    [
        ({}, "files", (100, "")),
        ({"limit": "5", "after": "x"}, "batches", (5, "x")),
        ({"limit": "10000"}, "files", (1_000, "")),
    ],
)
def test_a_page_has_a_size_and_a_begin(query, kind, expected):
    assert page_request(query, kind) == expected


@pytest.mark.parametrize("limit", ["0", "-1", "x", "101", "9999999"])
def test_a_page_of_another_size_is_refused(limit):
    with pytest.raises(InvalidArgument):
        page_request({"limit": limit}, "batches")
