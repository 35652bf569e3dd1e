"""The cores of RunLines: groups of lines by number, bytes and age, and batches whose results are acknowledged."""

import orjson
import pytest

from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.grpc.line_groups import GROUP_AGE_S, GROUP_BYTES, GROUP_LINES, LineCollector, ResultNumbers

ENDPOINT = "/v1/completions"


def collected(lines, body=b"{}"):
    collector = LineCollector(ENDPOINT)
    for number in range(lines):
        collector.add(f"c{number}", body, now=10.0)
    return collector


def test_lines_are_those_of_a_file_in_order():
    group = collected(2, b'{\n"a": 1}').take()
    assert group.lines == 2
    expected = [{"custom_id": f"c{number}", "method": "POST", "url": ENDPOINT, "body": {"a": 1}} for number in range(2)]
    assert [orjson.loads(each) for each in group.content.split(b"\n")] == expected


def test_a_body_that_is_no_json_is_an_error_of_its_line_alone():
    first, second = collected(1, b'{"a"\n').take().content, collected(1).take().content
    assert orjson.loads(first)["body"] is None
    assert orjson.loads(second)["body"] == {}


@pytest.mark.parametrize(
    ("collector", "due"),
    [
        (collected(1), GROUP_AGE_S - 0.2),
        (collected(GROUP_LINES - 1), GROUP_AGE_S - 0.2),
        (collected(GROUP_LINES), 0.0),
        (collected(1, orjson.dumps({"a": "x" * GROUP_BYTES})), 0.0),
    ],
)
def test_a_group_is_stored_when_it_is_large_or_old(collector, due):
    assert collector.due_in(10.2) == pytest.approx(due)
    assert collector.due_in(10.0 + GROUP_AGE_S) == 0.0


def test_a_taken_group_leaves_nothing():
    collector = collected(GROUP_LINES)
    collector.take()
    assert len(collector) == 0
    collector.add("c", b"{}", now=100.0)
    assert collector.due_in(100.0) == GROUP_AGE_S


def test_a_batch_is_deleted_once_all_its_results_are_acknowledged():
    numbers = ResultNumbers()
    assert [numbers.next_number() for _ in range(2)] == [1, 2]
    numbers.end_batch("first")
    numbers.next_number()
    assert numbers.acknowledge(1) == []
    assert numbers.acknowledge(3) == ["first"]
    numbers.end_batch("second")
    assert numbers.acknowledge(3) == ["second"]
    with pytest.raises(InvalidArgument):
        numbers.acknowledge(4)
