"""Division of a file into chunks: every line once, whatever the pieces in which it is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.batch.jobs import division
from penstock.batch.jobs.division import FileDivision, LineTooLong, lines_in

LINES = st.lists(st.sampled_from([b"", b" ", b"{}", b'{"a": 1}', b"x" * 50, b"\r"]), max_size=40)


def divided(content, size):
    found = FileDivision()
    for start in range(0, len(content), size):
        found.feed(content[start : start + size])
    found.finish()
    return found


@given(LINES, st.integers(1, 100), st.booleans(), st.integers(1, 6))
def test_the_chunks_have_every_line_once_in_order(lines, size, ends_with_break, chunk_lines):
    before = division.CHUNK_LINES
    division.CHUNK_LINES = chunk_lines
    try:
        content = b"\n".join(lines) + b"\n" * ends_with_break
        found = divided(content, size)
    finally:
        division.CHUNK_LINES = before
    read = [lines_in(content[offset : offset + length]) for _, _, offset, length in found.chunks]
    assert [len(each) for each in read] == [count for _, count, _, _ in found.chunks]
    assert [first for first, *_ in found.chunks] == [sum(map(len, read[:number])) for number in range(len(read))]
    assert [line for each in read for line in each] == [line.rstrip(b"\r") for line in lines if line.strip()]
    assert found.lines == sum(map(len, read))


def test_a_chunk_ends_at_its_bytes(monkeypatch):
    monkeypatch.setattr(division, "CHUNK_BYTES", 10)
    assert [count for _, count, _, _ in divided(b"12345\n12345\n12345\n", 4).chunks] == [2, 1]


@pytest.mark.parametrize("size", [3, 1_000])
def test_a_line_that_is_too_long_is_named(monkeypatch, size):
    monkeypatch.setattr(division, "LINE_BYTES", 20)
    with pytest.raises(LineTooLong, match="line 2"):
        divided(b"{}\n" + b"x" * 21 + b"\n", size)
