"""The stream of a response: deltas are written through only while its reader waits, and in order."""

import asyncio

import pytest

from penstock.chassis.errors import Internal, PenstockError
from penstock.edge.lifecycle.effects import Emit
from penstock.edge.lifecycle.memory import MemoryBudget
from penstock.edge.lifecycle.sinks import ResponseStream
from penstock.v1.inference_pb2 import Accepted, Delta, Finished


def delta(text, index=0):
    return Emit(text, (1,), index, ())


class Reader:
    """Reads a stream in a task of its own. `written` has what was written through."""

    def __init__(self):
        self.stream = ResponseStream(MemoryBudget(1 << 20))
        self.stream.write_through = self.write_through
        self.can_write = True
        self.written = []
        self.read = []
        self.error = None

    def write_through(self, each):
        if self.can_write:
            self.written.append(each.text)
        return self.can_write

    async def run(self):
        try:
            async for event in self.stream:
                self.read.append(event.text if isinstance(event, Delta) else type(event))
        except PenstockError as error:
            self.error = error


async def started():
    reader = Reader()
    task = asyncio.create_task(reader.run())
    await asyncio.sleep(0)
    return reader, task


async def test_deltas_are_written_through_while_the_reader_waits():
    reader, task = await started()
    assert [reader.stream.send_delta(delta(each)) for each in "ab"] == [0, 0]
    reader.stream.send_finished(Finished())
    await task
    assert (reader.written, reader.read) == (["a", "b"], [Finished])


async def test_a_delta_after_an_event_that_was_not_read_waits_behind_it():
    reader, task = await started()
    reader.stream.send_accepted(Accepted())
    assert reader.stream.send_delta(delta("a")) > 0
    await asyncio.sleep(0)
    assert reader.stream.send_delta(delta("b", 1)) == 0
    reader.stream.send_finished(Finished())
    await task
    assert (reader.read, reader.written) == ([Accepted, "a", Finished], ["b"])


async def test_deltas_of_a_client_that_does_not_read_are_merged_until_it_does():
    reader, task = await started()
    reader.can_write = False
    reader.stream.send_delta(delta("a"))
    reader.can_write = True
    assert reader.stream.send_delta(delta("b", 1)) > 0  # not before "a"
    await asyncio.sleep(0)
    reader.stream.send_delta(delta("c", 2))
    reader.stream.send_finished(Finished())
    await task
    assert (reader.read, reader.written) == (["ab", Finished], ["c"])


async def test_a_failed_write_ends_its_own_response_only():
    reader, task = await started()

    def fail(_):
        raise ValueError("no such text")

    reader.stream.write_through = fail
    reader.stream.send_delta(delta("a"))
    await task
    assert isinstance(reader.error, Internal)


async def test_nothing_is_written_for_a_reader_that_was_cancelled():
    reader, task = await started()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    reader.stream.send_delta(delta("a"))
    assert not reader.written
