"""Division of a file into chunks: every line once, whatever the pieces in which it is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.batch.jobs import division
from penstock.batch.jobs.division import FileDivision, lines_in

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


@pytest.mark.parametrize("size", [1, 3, 1_000])
def test_a_line_that_is_too_long_is_in_no_chunk(monkeypatch, size):
    monkeypatch.setattr(division, "LINE_BYTES", 20)
    long = b"x" * 21
    found = divided(b"\n".join([b"{}", long, b"[]", b"{}", long, long, b"x" * 20, long]), size)
    assert (found.lines, found.too_long) == (8, [1, 4, 5, 7])
    assert found.chunks == [(0, 1, 0, 3), (2, 2, 25, 6), (6, 1, 75, 21)]


def test_a_line_without_an_end_takes_little_memory(monkeypatch):
    monkeypatch.setattr(division, "LINE_BYTES", 1_000)
    found = FileDivision()
    for _ in range(100):
        found.feed(b"x" * 100)
        assert len(found._line) <= 1_000  # it has no other content
    found.finish()
    assert (found.lines, found.too_long, found.chunks) == (1, [0], [])
