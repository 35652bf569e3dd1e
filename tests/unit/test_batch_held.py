"""Chunks that a replica holds: turns, ends of lines, lost edges, and lost leases."""

import orjson
import pytest

from penstock.batch.jobs.chunks import ChunkKey, ClaimedChunk, Line
from penstock.batch.runner.held import MAX_RETRY_S, MAX_UNCONFIRMED_S, HeldChunks
from penstock.batch.runner.suspects import MAX_LOST_RUNS
from penstock.mesh.v1.batch_pb2 import (
    LINE_VERDICT_ANSWERED,
    LINE_VERDICT_LATER,
    LINE_VERDICT_LOST,
    LINE_VERDICT_STOP,
    LineEnded,
)

ENDPOINT = "/v1/embeddings"
CLAIMED_AT = 1_000.0  # s; after the times of most tests, in which the store confirms all chunks


def content(number):
    return orjson.dumps({"custom_id": f"c{number}", "method": "POST", "url": ENDPOINT, "body": {}})


def claimed(batch="batch_1", *, lines=3, epoch=1):
    return ClaimedChunk(ChunkKey(batch, 0), epoch, lines, "acme", "k", b"d", ENDPOINT, 1_000.0, 900.0)


def add(held, chunk, claimed_at=CLAIMED_AT):
    return held.add(chunk, [Line(number, content(number)) for number in range(chunk.line_count)], claimed_at)


def ended(line, verdict=LINE_VERDICT_ANSWERED):
    return LineEnded(number=line.handle, verdict=verdict, status=200, body=b"{}", input_tokens=2, output_tokens=3)


@pytest.fixture
def held():
    return HeldChunks()


def started(held, count, now=0.0):
    return [held.next_line("edge", now) for _ in range(count)]


def test_lines_of_chunks_start_in_turn(held):
    add(held, claimed("batch_1"))
    add(held, claimed("batch_2"))
    assert [each.chunk.key.batch_id for each in started(held, 4)] == ["batch_1", "batch_2"] * 2


def test_a_chunk_has_one_turn_in_a_round_after_its_lines_have_returned(held):
    add(held, claimed("batch_1", lines=2))
    add(held, claimed("batch_2", lines=9))
    first, _, second = started(held, 3)
    for line in (first, second):
        held.on_ended(line, ended(line, LINE_VERDICT_LATER), -10.0)
    assert [each.chunk.key.batch_id for each in started(held, 3)] == ["batch_2", "batch_1", "batch_2"]


def test_a_chunk_that_the_store_has_not_confirmed_recently_starts_no_line(held):
    add(held, claimed("batch_1"), claimed_at=0.0)
    add(held, claimed("batch_2"), claimed_at=1.0)
    now = MAX_UNCONFIRMED_S + 0.5
    assert [each.chunk.key.batch_id for each in started(held, 3, now)] == ["batch_2"] * 3
    assert held.next_line("edge", now) is None
    (stale,) = [each for each in held if each.waiting]
    stale.confirmed_at = 1.0
    assert held.next_line("edge", now).chunk is stale


def test_an_edge_delays_a_line_for_a_minute_at_most(held):
    add(held, claimed(lines=1))
    (line,) = started(held, 1)
    later = ended(line, LINE_VERDICT_LATER)
    later.failure.retry_after.seconds = 86_400
    held.on_ended(line, later, 0.0)
    assert held.next_line("edge", MAX_RETRY_S - 1.0) is None
    assert held.next_line("edge", MAX_RETRY_S) is line


def test_a_bad_line_has_its_row_at_once_and_the_chunk_waits_for_its_commit(held):
    bad = held.add(claimed(lines=1), [Line(0, b"{")], 0.0)
    assert [(each.number, each.is_error) for each in bad] == [(0, True)]
    assert held.remove_over() == []
    held.on_committed(bad)
    assert [each.key.batch_id for each in held.remove_over()] == ["batch_1"]


def test_a_line_that_is_lost_again_and_again_is_an_error(held):
    add(held, claimed(lines=1))
    found = []
    for run in range(MAX_LOST_RUNS):
        assert found == []
        line = held.next_line("edge", 100.0 * run)
        found = held.on_ended(line, ended(line, LINE_VERDICT_LOST), 100.0 * run)
    assert [each.is_error for each in found] == [True]
    assert held.waiting == held.in_mesh == 0


def test_a_line_that_returns_waits_and_continues_from_its_progress(held):
    add(held, claimed(lines=1))
    line = held.next_line("edge", 0.0)
    line.progress = b"p"
    assert held.on_edge_lost("edge", 5.0) == ([line], [])
    assert held.find(1, "edge") is None
    assert held.next_line("other", 5.0).progress == b"p"


@pytest.mark.parametrize("is_edge_lost", [False, True])
def test_a_line_whose_run_may_have_been_lost_is_marked(held, is_edge_lost):
    add(held, claimed("batch_1", lines=1))
    add(held, claimed("batch_2", lines=1, epoch=2))
    line, of_other_holder = started(held, 2)
    assert (line.may_have_run, of_other_holder.may_have_run) == (False, True)
    held.on_ended(line, ended(line, LINE_VERDICT_LATER), -10.0)
    assert not held.next_line("edge", 0.0).may_have_run
    if is_edge_lost:
        held.on_edge_lost("edge", -10.0)
    else:
        held.on_ended(line, ended(line, LINE_VERDICT_LOST), -10.0)
    assert held.next_line("edge", 0.0).may_have_run


def test_a_spent_budget_ends_all_lines_that_are_left(held):
    add(held, claimed())
    line = held.next_line("edge", 0.0)
    assert sorted(each.number for each in held.on_ended(line, ended(line, LINE_VERDICT_STOP), 0.0)) == [0, 1, 2]
    assert held.next_line("edge", 1e6) is None


def test_a_stopped_chunk_starts_no_line_and_keeps_the_answers_of_those_that_run(held):
    add(held, claimed())
    line = held.next_line("edge", 0.0)
    assert held.stop(line.chunk.key, is_lost=False) == [line]
    assert held.next_line("edge", 1e6) is None
    assert len(held.on_ended(line, ended(line), 0.0)) == 1


def test_no_line_of_an_ended_lease_starts_once_the_chunk_is_claimed_again(held):
    add(held, claimed(epoch=1))
    old = held.next_line("edge", 0.0)
    assert held.stop(old.chunk.key, is_lost=True) == [old]
    add(held, claimed(epoch=2))
    assert {each.chunk.claimed.epoch for each in started(held, 3)} == {2}
    assert held.next_line("edge", 1e6) is None
    assert held.on_ended(old, ended(old), 0.0) == []


def test_only_the_edge_that_has_a_line_ends_it(held):
    add(held, claimed())
    line = held.next_line("edge", 0.0)
    assert held.find(line.handle, "other") is None
    assert held.find(line.handle, "edge") is line


def running(held, edge, count, now=0.0):
    """Start lines that leave the queue."""
    found = []
    for _ in range(count):
        if line := held.next_line(edge, now):
            line.is_running = True
            found.append(line)
    return found


def answer(held, lines):
    for line in lines:
        held.on_ended(line, ended(line), 0.0)


def test_a_line_that_only_waited_at_lost_edges_is_never_an_error(held):
    add(held, claimed(lines=1))
    for loss in range(3 * MAX_LOST_RUNS):
        assert held.next_line("edge", float(loss))
        lost, results = held.on_edge_lost("edge", float(loss))
        assert (len(lost), results) == (1, [])


def test_a_line_that_kills_its_edge_is_the_only_error_of_those_that_ran_beside_it(held):
    add(held, claimed("batch_1", lines=200))
    deadly, errors, losses = 7, [], 0
    while held.waiting:
        lines = running(held, "edge", 60)
        if deadly in [each.number for each in lines]:
            losses += 1
            errors += held.on_edge_lost("edge", 0.0)[1]
        else:
            answer(held, lines)
    assert [(each.number, each.is_error) for each in errors] == [(deadly, True)]
    assert losses == MAX_LOST_RUNS
    assert orjson.loads(errors[0].row)["error"]["code"] == "line_lost"


def test_a_suspect_does_not_keep_other_lines_from_its_edge(held):
    add(held, claimed("batch_1", lines=20))
    for _ in range(MAX_LOST_RUNS - 1):
        [first] = running(held, "edge", 1)
        held.on_edge_lost("edge", 0.0)
    assert first.lost_runs == MAX_LOST_RUNS - 1
    assert len(running(held, "edge", 30)) == 20


def test_a_batch_that_is_stopped_gets_no_error_of_its_last_lines(held):
    add(held, claimed(lines=3))
    first, _ = started(held, 2)
    held.stop(claimed().key, is_lost=False)
    assert held.on_ended(first, ended(first, LINE_VERDICT_STOP), 0.0) == []


def test_the_window_of_a_chunk_ends_as_long_after_its_claim_as_the_store_said(held):
    held.add(claimed(lines=1), [Line(0, content(0))], 50.0)
    assert held.next_line("edge", 50.0).chunk.ends_at == 950.0
