"""Memory budget of the edge: prompts, unread output, and the slow readers that are ended for it."""

import pytest

from penstock.chassis.errors import Aborted
from penstock.edge.lifecycle.effects import Emit
from penstock.edge.lifecycle.memory import MemoryBudget
from penstock.edge.lifecycle.sinks import MAX_LOOSE_DELTAS, ResponseBuffer, ResponseStream, UnflushedOutput
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, Accepted, Finished

TOKEN_BYTES = 8  # of one delta: an id and four characters
TOO_SLOW = Aborted("too slow", reason="CLIENT_TOO_SLOW")


def fill(buffer, tokens, first_index=0):
    for index in range(first_index, first_index + tokens):
        buffer.add(Emit("word", (1_000 + index,), index, ()))


def slow_buffer(memory, tokens):
    buffer = ResponseBuffer(memory)
    fill(buffer, tokens)
    return buffer


def test_a_healthy_reader_counts_nothing():
    memory = MemoryBudget(1_000)
    fill(ResponseBuffer(memory), MAX_LOOSE_DELTAS)
    assert repr(memory) == "<MemoryBudget 0 + 0 of 1000 bytes>"


def test_a_slow_reader_is_counted_until_it_reads():
    memory = MemoryBudget(100_000)
    buffer = slow_buffer(memory, 5 * MAX_LOOSE_DELTAS + 1)
    assert memory.unread_bytes == 5 * MAX_LOOSE_DELTAS * TOKEN_BYTES
    assert buffer.size_bytes == memory.unread_bytes + TOKEN_BYTES
    buffer.pop()
    assert (memory.unread_bytes, buffer.size_bytes) == (0, 0)


@pytest.mark.parametrize("tokens", range(0, 4 * MAX_LOOSE_DELTAS, 7))
def test_a_slow_reader_receives_every_token_once_and_in_order(tokens):
    buffer = ResponseBuffer(MemoryBudget(100_000))
    for index in range(3, 3 + tokens):
        buffer.add(Emit("é", (index,), index, (-float(index),)))
    buffer.add(Emit("rest", (), 3 + tokens, ()))
    if tokens:
        first = buffer.pop()
        assert (first.text, list(first.token_ids), first.first_index) == ("é" * tokens, [*range(3, 3 + tokens)], 3)
        assert list(first.logprobs) == [-float(index) for index in range(3, 3 + tokens)]
    assert buffer.pop() == Emit("rest", (), 3 + tokens, ())
    assert not buffer


def test_text_is_counted_by_its_bytes():
    memory = MemoryBudget(100_000)
    buffer = ResponseBuffer(memory)
    for index in range(MAX_LOOSE_DELTAS + 1):
        buffer.add(Emit("\U0001f600", (1,), index, ()))
    assert memory.unread_bytes == MAX_LOOSE_DELTAS * (4 + 4)


def test_prompts_leave_a_share_to_unread_output():
    memory = MemoryBudget(1_000)
    assert memory.has_room(750)
    assert not memory.has_room(751)


def test_unread_output_may_use_all_that_prompts_do_not_use():
    memory = MemoryBudget(2_048)
    exhausted = []
    memory.on_exhausted = lambda: exhausted.append(repr(memory))
    buffer = slow_buffer(memory, 2_048 // TOKEN_BYTES + 1)
    assert (memory.unread_bytes, exhausted, memory.slowest_readers()) == (2_048, [], [])
    memory.add_prompt(1)
    assert exhausted == ["<MemoryBudget 1 + 2048 of 2048 bytes>"]
    assert memory.slowest_readers() == [buffer]


def test_the_slowest_readers_are_chosen_and_not_more_than_necessary():
    memory = MemoryBudget(16_000)
    buffers = [slow_buffer(memory, MAX_LOOSE_DELTAS * blocks + 1) for blocks in (20, 5, 60, 40, 10)]  # 128 B a block
    assert memory.unread_bytes == 135 * 128
    assert memory.slowest_readers() == [buffers[2]]
    buffers[2].discard(TOO_SLOW)
    assert memory.unread_bytes == 75 * 128
    assert memory.slowest_readers() == []


async def test_a_discarded_answer_ends_in_the_error_after_what_was_read():
    memory = MemoryBudget(100_000)
    stream = ResponseStream(memory)
    stream.send_accepted(Accepted())
    fill(stream.buffer, 100)
    stream.send_finished(Finished(reason=FINISH_REASON_LENGTH))
    stream.buffer.discard(TOO_SLOW)
    assert memory.unread_bytes == 0
    assert isinstance(await anext(stream), Accepted)
    with pytest.raises(Aborted, match="too slow"):
        await anext(stream)


def test_a_closed_stream_counts_nothing():
    memory = MemoryBudget(100_000)
    stream = ResponseStream(memory)
    fill(stream.buffer, 100)
    stream.close()
    assert memory.held_bytes == 0


def test_output_in_the_outbox_of_a_session_is_counted_and_closes_the_session_if_it_is_too_much():
    memory, closed = MemoryBudget(1_000), []
    outbox = UnflushedOutput(memory, lambda: closed.append(True))
    outbox.add(900)
    slow_buffer(memory, MAX_LOOSE_DELTAS + 1)
    assert memory.slowest_readers() == [outbox]
    outbox.discard(TOO_SLOW)
    assert (closed, memory.unread_bytes) == ([True], MAX_LOOSE_DELTAS * TOKEN_BYTES)
