"""Server-sent events as bytes. What is the same for every token of an answer is serialised once."""

import orjson

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": waiting\n\n"  # a comment, which readers skip: shows proxies and clients that the stream lives


def sse_event(payload: object) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def named_sse_event(name: str, payload: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(payload) + b"\n\n"


def split_at_marker(frame: bytes, marker: str) -> tuple[bytes, bytes]:
    """Cut a frame at the JSON string `marker`: what comes before that value, and after it."""
    before, found, after = frame.partition(orjson.dumps(marker))
    assert found, "the marker is one of the frame's strings"
    return before, after
