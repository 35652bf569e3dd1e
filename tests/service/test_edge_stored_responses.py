"""Leases of stored responses at the edge: what is charged, and what readers see, when another edge takes them over."""

import asyncio
import base64
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass

import openai
import pytest

import response_calls as stored
from edge_mesh import FakeWorker, edge_mesh, text_of
from free_ports import free_port
from penstock.chassis.errors import NotFound
from penstock.edge.stored.retrieval import FOLLOW_INTERVAL_S
from penstock.mesh.v1 import responses_pb2 as pb

TIMEOUT_S = 30.0  # bound of every wait
PAUSE_AT, TOKENS = 6, 20
KEYS = f"test:{base64.b64encode(bytes(32)).decode()}"


async def until(is_true):
    """Wait until the function returns a true value."""
    async with asyncio.timeout(TIMEOUT_S):
        while not await is_true():  # noqa: ASYNC110  # of another task, which has no event
            await asyncio.sleep(0.02)


@dataclass
class StoredMesh:
    """An edge with a store of responses, and another edge's client of the store."""

    mesh: object
    api: openai.AsyncOpenAI
    other: stored.ResponseClient
    ahead: list  # s by which the clock of the store is ahead

    @property
    def worker(self):
        return self.mesh.workers[0]

    async def paused_stream(self, **fields):
        """Begin a response, whose worker pauses. Returns its id, its events so far, and its stream."""
        stream = await self.api.responses.create(
            model="tiny", input="hi", max_output_tokens=TOKENS, stream=True, extra_body={"ignore_eos": True}, **fields
        )
        events = []
        async with asyncio.timeout(TIMEOUT_S):
            async for event in stream:
                events.append(event)
                if "".join(getattr(each, "delta", "") for each in events) == text_of(PAUSE_AT):
                    break
        return events[0].response.id, events, stream

    async def wait_for_tokens(self, response_id, count):
        async def is_stored():
            return (await self.other(stored.read(response_id)))[0].token_count >= count

        await until(is_stored)

    async def figure(self, name):
        return (await self.mesh.figures())[name]

    async def settled(self):
        async with asyncio.timeout(TIMEOUT_S):
            found = await self.mesh.auth.settles.get()
        return found.prompt_tokens > 0, found.output_tokens, found.outcome


@asynccontextmanager
async def stored_mesh(*, pause_at=PAUSE_AT):
    ahead = [0.0]
    worker = FakeWorker("w1", pause_at_index=pause_at)
    http = f"127.0.0.1:{free_port()}"
    async with (
        stored.response_client(":memory:", lambda: time.time() + ahead[0]) as client,
        edge_mesh(fakes=[worker], responses=client.store, http_listen=http, response_keys=KEYS) as mesh,
        openai.AsyncOpenAI(base_url=f"http://{http}/v1", api_key="good", max_retries=0) as api,
    ):
        found = StoredMesh(mesh, api, stored.ResponseClient(client.store, "edge-2"), ahead)
        await until(lambda: found.figure("response_store_links_up"))
        yield found


async def rest_of(stream):
    async with asyncio.timeout(TIMEOUT_S):
        return [event async for event in stream]


async def test_progress_is_stored_while_a_response_is_generated_and_its_end_before_the_reader_sees_it():
    async with stored_mesh() as found:
        response_id, _, stream = await found.paused_stream()
        await found.wait_for_tokens(response_id, PAUSE_AT)
        (handle,) = found.worker.runs
        found.worker.send_tokens(handle)
        last = (await rest_of(stream))[-1]
        (ended,) = await found.other(stored.read(response_id))
        assert (ended.status, ended.token_count) == (pb.RESPONSE_STATUS_INCOMPLETE, TOKENS)
        assert (ended.resume, last.response.output_text) == (b"", text_of(TOKENS))
        assert b"hi" not in ended.request
        assert text_of(TOKENS).encode() not in ended.output
        assert await found.settled() == (True, TOKENS, "length")
        assert (await found.api.responses.retrieve(response_id)).output_text == text_of(TOKENS)


async def test_a_response_that_another_edge_claims_ends_here_without_a_charge():
    async with stored_mesh() as found:
        response_id, _, stream = await found.paused_stream()
        await found.wait_for_tokens(response_id, PAUSE_AT)
        found.ahead[0] = 60.0
        (claimed,) = await found.other(stored.claim(response_id))
        assert claimed.token_count == PAUSE_AT
        last = (await rest_of(stream))[-1]
        assert (last.type, last.response.error.message) == (
            "response.failed",
            "another edge continues this response; retrieve it by its id",
        )
        assert await found.settled() == (False, 0, "cancelled")
        assert (await found.mesh.figures())["responses_lost"] == 1
        assert (await found.other(stored.read(response_id)))[0].status == pb.RESPONSE_STATUS_IN_PROGRESS


async def test_a_response_that_is_cancelled_while_its_edge_is_late_is_charged_here_as_no_other_edge_had_it():
    async with stored_mesh() as found:
        response_id, _, _ = await found.paused_stream()
        await found.wait_for_tokens(response_id, PAUSE_AT)
        found.ahead[0] = 60.0
        (ended,) = await found.other(stored.cancel(response_id))
        assert ended.status == pb.RESPONSE_STATUS_CANCELLED
        assert await found.settled() == (True, PAUSE_AT, "cancelled")


async def test_a_response_that_is_deleted_while_it_is_generated_is_charged():
    async with stored_mesh() as found:
        response_id, _, _ = await found.paused_stream()
        await found.other(stored.delete(response_id))
        assert await found.settled() == (True, PAUSE_AT, "cancelled")
        with pytest.raises(NotFound):
            await found.other(stored.read(response_id))


async def test_a_drained_edge_charges_what_it_hands_over_and_the_next_one_continues_it():
    async with stored_mesh() as found:
        response_id, _, _ = await found.paused_stream(background=True)
        await found.mesh.drain()
        assert await found.settled() == (True, PAUSE_AT, "cancelled")
        (claimed,) = await found.other(stored.claim())
        assert (claimed.key.response_id, claimed.token_count, claimed.status) == (
            response_id,
            PAUSE_AT,
            pb.RESPONSE_STATUS_IN_PROGRESS,
        )


async def test_a_claimed_response_is_continued_from_its_stored_tokens():
    async with stored_mesh() as found:
        response_id, events, stream = await found.paused_stream(background=True)
        await found.wait_for_tokens(response_id, PAUSE_AT)
        await stream.close()
        found.ahead[0] = 60.0
        (claimed,) = await found.other(stored.claim(response_id))
        await found.settled()
        await found.other(stored.extend(stored.progress(response_id, claimed.epoch, release=True)))
        found.worker.pause_at_index = None
        again = await found.api.responses.retrieve(response_id, stream=True, starting_after=len(events) - 1)
        rest = await rest_of(again)
        assert rest[0].sequence_number == len(events)
        assert rest[-1].response.output_text == text_of(TOKENS)
        resumed = found.worker.starts[-1]
        assert (resumed.emitted, resumed.sampling.seed) == (PAUSE_AT, found.worker.starts[0].sampling.seed)
        assert await found.settled() == (True, TOKENS - PAUSE_AT, "length")
        reserve = found.mesh.auth.reserves[-1]
        assert (reserve.emitted_tokens, reserve.answer_id) == (PAUSE_AT, found.mesh.auth.reserves[0].request_id)


async def until_resumed(found):
    async def has_begun():
        return len(found.worker.starts) == 2 and found.worker.runs

    await until(has_begun)


async def test_readers_that_come_at_once_all_read_a_response_that_one_of_them_has_continued():
    async with stored_mesh() as found:
        response_id, events, stream = await found.paused_stream(background=True)
        await found.wait_for_tokens(response_id, PAUSE_AT)
        await stream.close()
        found.ahead[0] = 60.0
        (claimed,) = await found.other(stored.claim(response_id))
        await found.settled()
        await found.other(stored.extend(stored.progress(response_id, claimed.epoch, release=True)))
        found.worker.pause_at_index = PAUSE_AT + 4

        async def read_on():
            return await rest_of(await found.api.responses.retrieve(response_id, stream=True, starting_after=3))

        reading = asyncio.gather(*[read_on() for _ in range(5)])
        await until_resumed(found)
        await asyncio.sleep(2 * FOLLOW_INTERVAL_S)  # those that were late for the claim have looked at it
        found.worker.send_tokens(*found.worker.runs)
        first, *others = await reading
        assert [each.sequence_number for each in first] == list(range(4, len(events) + TOKENS - PAUSE_AT + 4))
        assert all(each == first for each in others)
        assert await found.figure("responses_resumed") == 1


async def test_a_request_that_is_refused_before_it_is_queued_stores_nothing():
    async with stored_mesh() as found:
        with pytest.raises(openai.BadRequestError, match="do not fit"):
            await found.api.responses.create(model="tiny", input="hi", max_output_tokens=10_000)

        async def is_forgotten():
            return not await found.figure("responses_held") and not found.other.store.pending

        await until(is_forgotten)
        assert await found.other(stored.claim()) == []


async def test_a_call_that_the_store_refuses_is_not_charged():
    async with stored_mesh() as found:
        await found.other(stored.create("resp_taken"))
        with pytest.raises(openai.ConflictError):
            await found.api.responses.create(model="tiny", input="hi", extra_headers={"x-request-id": "taken"})
        assert await found.settled() == (False, 0, "cancelled")


async def test_a_reader_that_has_more_events_than_were_stored_receives_the_end():
    async with stored_mesh() as found:
        response_id, _, _ = await found.paused_stream(background=True)
        found.ahead[0] = 60.0
        await found.other(stored.cancel(response_id))
        await found.settled()
        rest = await rest_of(await found.api.responses.retrieve(response_id, stream=True, starting_after=1_000))
        assert [each.response.status for each in rest] == ["cancelled"]


async def test_a_caller_that_disconnects_cancels_its_response():
    async with stored_mesh() as found:
        response_id, _, stream = await found.paused_stream()
        await stream.close()
        assert await found.settled() == (True, PAUSE_AT, "cancelled")

        async def has_ended():
            return (await found.api.responses.retrieve(response_id)).status != "in_progress"

        await until(has_ended)
        cancelled = await found.api.responses.retrieve(response_id)
        assert (cancelled.status, cancelled.output_text) == ("cancelled", text_of(PAUSE_AT))
