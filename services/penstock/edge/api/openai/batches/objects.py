"""Objects of the Files API and the Batch API, from messages, and messages from the body of a call."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from google.protobuf.timestamp_pb2 import Timestamp

from penstock.chassis.durations import set_seconds
from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.openai.body.fields import Fields
from penstock.edge.api.openai.common import Json
from penstock.edge.request import limits
from penstock.v1 import batches_pb2 as pb

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")
WINDOW_UNITS: Mapping[str, float] = {"m": 60.0, "h": 3_600.0, "d": 86_400.0}
WINDOW_RANGE_S = (60.0, 7 * 86_400.0)
PURPOSES: Mapping[int, str] = {pb.FILE_PURPOSE_BATCH: "batch", pb.FILE_PURPOSE_BATCH_OUTPUT: "batch_output"}
STATUSES: Mapping[int, str] = {
    value: name.removeprefix("BATCH_STATUS_").lower() for name, value in pb.BatchStatus.items() if value
}
DEFAULT_PAGE = {"files": 100, "batches": 20}
MAX_PAGE = {"files": 1_000, "batches": 100}


def file_object(file: pb.File) -> Json:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": file.create_time.seconds,
        "expires_at": _time(file, "expire_time"),
        "filename": file.filename,
        "purpose": PURPOSES.get(file.purpose, "batch"),
        "status": "processed",
    }


def deleted_file(file_id: str) -> Json:
    return {"id": file_id, "object": "file", "deleted": True}


def batch_object(batch: pb.Batch) -> Json:
    failure = {"code": batch.failure.reason.lower(), "message": batch.failure.message, "line": None, "param": None}
    status, end = STATUSES[batch.status], _time(batch, "end_time")
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": {"object": "list", "data": [failure]} if batch.HasField("failure") else None,
        "input_file_id": batch.input_file_id,
        "completion_window": _window_text(batch.completion_window.seconds),
        "status": status,
        "output_file_id": batch.output_file_id or None,
        "error_file_id": batch.error_file_id or None,
        "created_at": batch.create_time.seconds,
        "in_progress_at": _time(batch, "start_time"),
        "expires_at": _time(batch, "expire_time"),
        "finalizing_at": _time(batch, "finalize_time"),
        "completed_at": end if status == "completed" else None,
        "failed_at": end if status == "failed" else None,
        "expired_at": end if status == "expired" else None,
        "cancelling_at": _time(batch, "cancel_time"),
        "cancelled_at": end if status == "cancelled" else None,
        "request_counts": {
            "total": batch.lines.total,
            "completed": batch.lines.completed,
            "failed": batch.lines.failed,
        },
        "usage": {
            "input_tokens": batch.tokens.input,
            "output_tokens": batch.tokens.output,
            "total_tokens": batch.tokens.input + batch.tokens.output,
        },
        "expected_end_at": _time(batch, "expected_end_time"),
        "metadata": dict(batch.metadata) or None,
    }


def page(objects: Iterable[Json], *, has_more: bool) -> bytes:
    """Return a list object."""
    data = list(objects)
    ids = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return orjson.dumps({"object": "list", "data": data, **ids, "has_more": has_more})


def parse_batch(fields: Fields) -> pb.CreateBatchRequest:
    """Return the call of a body. Raises InvalidArgument."""
    endpoint = fields.text("endpoint")
    if endpoint not in ENDPOINTS:
        raise InvalidArgument(f"endpoint must be one of {', '.join(ENDPOINTS)}", field="endpoint")
    request = pb.CreateBatchRequest(input_file_id=fields.text("input_file_id"), endpoint=endpoint)
    if not request.input_file_id:
        raise InvalidArgument("input_file_id is missing; upload a file first", field="input_file_id")
    set_seconds(request.completion_window, window_of(fields.text("completion_window") or "24h"))
    request.metadata.update(_metadata(fields))
    expiry = fields.object("output_expires_after")
    if expiry.members:
        set_seconds(request.output_ttl, float(expiry.integer("seconds", 0)))
    return request


def window_of(text: str) -> float:
    """Return the seconds of a completion window, such as 24h, 30m or 7d. Raises InvalidArgument."""
    number, unit = text[:-1], WINDOW_UNITS.get(text[-1:], 0.0)
    seconds = float(number) * unit if number.isdecimal() and len(number) < 6 else 0.0
    low, high = WINDOW_RANGE_S
    if not low <= seconds <= high:
        raise InvalidArgument("completion_window must be 1m to 7d, such as 24h", field="completion_window")
    return seconds


def page_request(query: Mapping[str, str], kind: str) -> tuple[int, str]:
    """Return the size of a page of `files` or `batches`, and the id after which it begins. Raises InvalidArgument."""
    text = query.get("limit", "")
    size = int(text) if text.isdecimal() and len(text) < 6 else 0 if text else DEFAULT_PAGE[kind]
    if not 1 <= size <= MAX_PAGE[kind]:
        if kind == "files" and size > MAX_PAGE[kind]:
            size = MAX_PAGE[kind]  # OpenAI's own clients ask for 10,000
        else:
            raise InvalidArgument(f"limit must be 1 to {MAX_PAGE[kind]}, not {text!r}", field="limit")
    return size, query.get("after", "")


def _metadata(fields: Fields) -> dict[str, str]:
    given = fields.object("metadata").members
    if len(given) > limits.METADATA_PAIRS:
        raise InvalidArgument(f"metadata has {len(given)} pairs; at most {limits.METADATA_PAIRS}", field="metadata")
    for key, value in given.items():
        if (
            not isinstance(value, str)
            or len(value) > limits.METADATA_VALUE_CHARS
            or len(key) > limits.METADATA_KEY_CHARS
        ):
            text = f"keys have at most {limits.METADATA_KEY_CHARS} characters, and values are texts of at most"
            raise InvalidArgument(f"metadata: {text} {limits.METADATA_VALUE_CHARS}", field=f"metadata.{key[:64]}")
    return dict(given)


def _window_text(seconds: int) -> str:
    for unit in ("h", "m") if seconds <= WINDOW_UNITS["d"] else ("d", "h", "m"):
        if seconds % WINDOW_UNITS[unit] == 0:
            return f"{seconds // round(WINDOW_UNITS[unit])}{unit}"
    return f"{seconds}s"


def _time(message: Any, name: str) -> int | None:
    time: Timestamp = getattr(message, name)
    return time.seconds if message.HasField(name) else None
