"""One line of a batch: a call of the API, or the reason why it is none."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

MAX_CUSTOM_ID_CHARS = 64
LINE_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class LineCall:
    """A call that an edge can run."""

    custom_id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class LineInvalid(Exception):
    """The line is no call. Its row is in the error file."""

    code: str
    message: str
    custom_id: str = ""  # if the line has one


def custom_id_of(content: bytes) -> str:
    """Return the custom_id of a line, valid or not otherwise; empty if it has none."""
    try:
        members = orjson.loads(content)
    except orjson.JSONDecodeError:
        return ""
    return _custom_id(members) if isinstance(members, dict) else ""


def _custom_id(members: dict[str, Any]) -> str:
    found = members.get("custom_id")
    return found if isinstance(found, str) and len(found) <= MAX_CUSTOM_ID_CHARS else ""


def parse_line(content: bytes, endpoint: str) -> LineCall:
    """Return the call of a line. Raises LineInvalid."""
    try:
        members = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise LineInvalid("invalid_json_line", f"the line is not JSON: {error}") from None
    if not isinstance(members, dict):
        raise LineInvalid("invalid_json_line", "the line must be a JSON object")
    custom_id = _custom_id(members)
    if not custom_id:
        text = f"custom_id must be a text of 1 to {MAX_CUSTOM_ID_CHARS} characters"
        raise LineInvalid("invalid_custom_id", text)
    if members.get("method") != "POST":
        raise LineInvalid("invalid_method", "method must be POST", custom_id)
    if members.get("url") != endpoint:
        raise LineInvalid("mismatched_endpoint", f"url must be {endpoint}, as the batch says", custom_id)
    body = members.get("body")
    if not isinstance(body, dict):
        raise LineInvalid("invalid_body", "body must be a JSON object", custom_id)
    if body.get("stream"):
        raise LineInvalid("stream_unsupported", "a line of a batch is not streamed; leave out stream", custom_id)
    try:
        return LineCall(custom_id, orjson.dumps(body))
    except orjson.JSONEncodeError as error:  # reads deeper nesting than it writes
        raise LineInvalid("invalid_body", f"body cannot be passed on: {error}", custom_id) from None


def line_id(batch_id: str, number: int) -> str:
    """Return the id of a line's answer: the same each time that the line runs, 32 hexadecimal digits."""
    return blake2b(f"{batch_id}/{number}".encode(), digest_size=LINE_ID_BYTES).hexdigest()


def answer_row(call_id: str, custom_id: str, *, status: int, request_id: str, body: bytes) -> bytes:
    """Return the row of an answer, for the output file. `body`: JSON."""
    response = {"status_code": status, "request_id": request_id, "body": orjson.Fragment(body)}
    return _row(call_id, custom_id, response=response, error=None)


def refused_row(call_id: str, custom_id: str, *, status: int, request_id: str, body: bytes) -> bytes:
    """Return the row of a call that was refused for good, for the error file."""
    response = {"status_code": status, "request_id": request_id, "body": orjson.Fragment(body)}
    return _row(call_id, custom_id, response=response, error=None)


def error_row(call_id: str, custom_id: str, *, code: str, message: str) -> bytes:
    """Return the row of a line without a response, for the error file."""
    return _row(call_id, custom_id, response=None, error={"code": code, "message": message})


def _row(call_id: str, custom_id: str, *, response: Any, error: Any) -> bytes:
    row = {"id": f"batch_req_{call_id}", "custom_id": custom_id or None, "response": response, "error": error}
    return orjson.dumps(row)
