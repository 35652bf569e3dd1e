"""Lines of a batch: which are calls, and the row of each that is none."""

import orjson
import pytest

from penstock.batch.lines.line import LineInvalid, answer_row, error_row, line_id, parse_line

ENDPOINT = "/v1/chat/completions"
GOOD = {"custom_id": "a", "method": "POST", "url": ENDPOINT, "body": {"model": "m"}}


def nested(depth):
    body = "[" * depth + "]" * depth
    return b'{"custom_id":"a","method":"POST","url":"%s","body":{"x":%s}}' % (ENDPOINT.encode(), body.encode())


def test_a_line_is_a_call_with_its_body():
    call = parse_line(orjson.dumps(GOOD), ENDPOINT)
    assert (call.custom_id, orjson.loads(call.body)) == ("a", {"model": "m"})


@pytest.mark.parametrize(
    ("content", "code", "custom_id"),
    [
        (b"{", "invalid_json_line", ""),
        (b"", "invalid_json_line", ""),
        (b"\xff\xfe", "invalid_json_line", ""),
        (b"[1]", "invalid_json_line", ""),
        (orjson.dumps(GOOD | {"custom_id": 7}), "invalid_custom_id", ""),
        (orjson.dumps(GOOD | {"custom_id": ""}), "invalid_custom_id", ""),
        (orjson.dumps(GOOD | {"custom_id": "a" * 65}), "invalid_custom_id", ""),
        (orjson.dumps(GOOD | {"method": "GET"}), "invalid_method", "a"),
        (orjson.dumps(GOOD | {"url": "/v1/embeddings"}), "mismatched_endpoint", "a"),
        (orjson.dumps(GOOD | {"body": "m"}), "invalid_body", "a"),
        (orjson.dumps(GOOD | {"body": {"stream": True}}), "stream_unsupported", "a"),
        (nested(300), "invalid_body", "a"),
        (nested(2_000), "invalid_json_line", ""),
    ],
)
def test_a_line_that_is_no_call_has_its_reason(content, code, custom_id):
    with pytest.raises(LineInvalid) as caught:
        parse_line(content, ENDPOINT)
    assert (caught.value.code, caught.value.custom_id) == (code, custom_id)


def test_the_id_of_a_line_is_the_same_each_time_and_of_one_line():
    ids = {line_id(batch, number) for batch in ("batch_1", "batch_11") for number in range(100)}
    assert len(ids) == 200
    assert line_id("batch_1", 0) == line_id("batch_1", 0)
    assert {len(each) for each in ids} == {32}


def test_rows_are_those_of_openai():
    answered = orjson.loads(answer_row("f0", "a", status=200, request_id="r", body=b'{"x":1}'))
    response = {"status_code": 200, "request_id": "r", "body": {"x": 1}}
    assert answered == {"id": "batch_req_f0", "custom_id": "a", "response": response, "error": None}
    failed = orjson.loads(error_row("f0", "", code="c", message="m"))
    assert failed == {
        "id": "batch_req_f0",
        "custom_id": None,
        "response": None,
        "error": {"code": "c", "message": "m"},
    }
