"""Requests that leave their region: offered by one edge, run by another, charged and answered at home."""

import asyncio
from datetime import timedelta

import grpc
import pytest

from edge_mesh import FakeWorker, text_of
from line_streams import line_client
from penstock.chassis.errors import DeadlineExceeded
from penstock.local_mesh.tcp_relay import CutDirection
from penstock.mesh.v1 import batch_pb2
from penstock.mesh.v1.queue_pb2 import RejectionWindow
from penstock.v1.admin_pb2 import ExplainRequest
from penstock.v1.inference_pb2 import PRIORITY_STANDARD, Sampling
from two_regions import full, two_regions, wait_for

TOKENS = 5


async def settled(mesh):
    settle = await asyncio.wait_for(mesh.auth.settles.get(), 20.0)
    assert mesh.auth.settles.empty()
    return settle.prompt_tokens, settle.output_tokens, settle.outcome, settle.worker


async def rejection_of(regions, **fields):
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await regions.answer(max_output_tokens=TOKENS, **fields)
    return failed.value


def paused(name, index=2):
    return FakeWorker(name, pause_at_index=index)


async def test_a_rejected_request_runs_in_another_region_and_is_charged_at_home():
    async with two_regions() as regions:
        regions.shed_at_home()
        text, finished = await regions.answer(max_output_tokens=TOKENS, sampling=Sampling(seed=7))
        assert text == text_of(TOKENS)
        assert (finished.usage.prompt_tokens, finished.usage.output_tokens) == (2, TOKENS)
        assert await settled(regions.home) == (2, TOKENS, "length", "region:us")
        assert regions.home.workers[0].starts == []
        [start] = regions.us.workers[0].starts
        assert (start.sampling.seed, start.max_output_tokens, start.emitted) == (7, TOKENS, 0)
        [ticket] = regions.us.queue.tickets
        assert (ticket.tenant_id, ticket.priority, ticket.weight) == ("acme", PRIORITY_STANDARD, 1.0)
        assert ticket.away_nanos > 0
        assert not ticket.may_have_run
        assert regions.us.auth.reserves == []
        assert regions.us.auth.settles.empty()
        await regions.at_rest()
        await wait_for(regions.home, requests_remembered=1)
        [reserve] = regions.home.auth.reserves
        explained = (await regions.home.admin.Explain(ExplainRequest(id=reserve.request_id))).request
        assert (explained.worker_id, explained.rejected_by, explained.attempts) == ("region:us", "", 1)


async def test_a_request_that_the_queue_admits_stays():
    async with two_regions() as regions:
        text, _ = await regions.answer(max_output_tokens=TOKENS)
        assert text == text_of(TOKENS)
        assert regions.us.queue.tickets == []


async def test_a_request_that_both_regions_reject_ends_in_the_rejection_at_home_and_is_not_offered_again():
    async with two_regions() as regions:
        regions.shed_at_home(2)
        regions.us.queue.sheds.append(full(retry_after=30.0))
        error = await rejection_of(regions)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await settled(regions.home) == (0, 0, "shed", "")
        await rejection_of(regions)
        assert len(regions.us.queue.tickets) == 1
        await regions.at_rest()


@pytest.mark.parametrize("fields", [{"allowed": ("eu",)}, {"allowed": ("eu", "ap")}, {"spill_stay": ("standard",)}])
async def test_a_request_that_must_stay_is_not_offered(fields):
    async with two_regions(**fields) as regions:
        regions.shed_at_home()
        error = await rejection_of(regions)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await regions.us.figures())["requests_started"] == 0


async def test_lines_of_batches_stay():
    async with two_regions() as regions, line_client(regions.home.address) as lines:
        regions.shed_at_home()
        lines.start(1, {"model": "tiny", "prompt": "hi", "max_tokens": TOKENS})
        assert (await lines.end_of(1)).verdict == batch_pb2.LINE_VERDICT_LATER
        assert (await regions.us.figures())["requests_started"] == 0


async def test_the_rejection_cache_lets_a_request_pass_that_another_region_may_take():
    async with two_regions() as regions:
        window = RejectionWindow(duration=timedelta(seconds=20), min_prompt_tokens=1, min_output_tokens=1)
        regions.home.queue.shed_windows = [window]
        regions.shed_at_home(3)
        for _ in range(2):
            text, _ = await regions.answer(max_output_tokens=TOKENS)
            assert text == text_of(TOKENS)
        regions.us.queue.sheds.append(full(retry_after=30.0))
        await rejection_of(regions)
        assert len(regions.home.queue.tickets) == 3
        error = await rejection_of(regions)  # by the edge, as no region may take it
        assert dict(error.trailing_metadata())["grpc-retry-pushback-ms"]
        assert len(regions.home.queue.tickets) == 3


async def test_a_cancel_reaches_the_worker_in_the_other_region_and_is_acknowledged():
    async with two_regions(us=[paused("us-1")]) as regions:
        regions.shed_at_home()
        call = regions.home.generate(max_output_tokens=TOKENS)
        await asyncio.wait_for(regions.us.workers[0].paused.get(), 20.0)
        await wait_for(regions.home, requests_running=1)
        call.cancel()
        await asyncio.wait_for(regions.us.workers[0].cancels.get(), 20.0)
        assert await settled(regions.home) == (2, 2, "cancelled", "region:us")
        await wait_for(regions.home, cancels=1, cancels_acknowledged=1)
        await regions.at_rest()


async def test_an_answer_continues_at_home_if_the_link_is_cut():
    async with two_regions(us=[paused("us-1")]) as regions:
        regions.shed_at_home()
        answering = asyncio.create_task(regions.answer(max_output_tokens=TOKENS, sampling=Sampling(seed=7)))
        await asyncio.wait_for(regions.us.workers[0].paused.get(), 20.0)
        await wait_for(regions.home, requests_running=1)
        await asyncio.sleep(0.05)  # for the two tokens; fewer are as right
        regions.link.cut(CutDirection.BOTH)
        text, finished = await answering
        assert text == text_of(TOKENS)
        assert finished.usage.output_tokens == TOKENS
        assert await settled(regions.home) == (2, TOKENS, "length", "home-1")
        [start] = regions.home.workers[0].starts
        assert start.sampling.seed == 7
        assert regions.home.queue.tickets[-1].attempt == 2
        await asyncio.wait_for(regions.us.workers[0].cancels.get(), 20.0)  # the guest is not left running
        await wait_for(regions.us, guests=0, active_requests=0)
        regions.link.restore()
        await wait_for(regions.home, region_links_up=1)


async def test_a_cut_among_many_answers_loses_no_token_and_charges_each_answer_once():
    count = 24
    async with two_regions(us=[paused("us-1", index=3)]) as regions:
        regions.shed_at_home(count)
        answers = [asyncio.create_task(regions.answer(max_output_tokens=TOKENS)) for _ in range(count)]
        for _ in range(count):
            await asyncio.wait_for(regions.us.workers[0].paused.get(), 20.0)
            await asyncio.wait_for(regions.begun.acquire(), 20.0)
        regions.link.cut(CutDirection.DOWNSTREAM)  # the other region still hears of us
        assert {text for text, _ in await asyncio.gather(*answers)} == {text_of(TOKENS)}
        settles = [await asyncio.wait_for(regions.home.auth.settles.get(), 20.0) for _ in range(count)]
        assert len({each.reservation_id for each in settles}) == count
        assert {(each.prompt_tokens, each.output_tokens) for each in settles} == {(2, TOKENS)}
        assert regions.home.auth.settles.empty()
        regions.link.restore()
        await regions.at_rest()


async def test_a_deadline_that_has_passed_elsewhere_says_nothing_about_other_requests():
    async with two_regions() as regions:
        regions.shed_at_home(2)
        regions.us.queue.sheds.append(DeadlineExceeded("late"))
        await rejection_of(regions)
        text, _ = await regions.answer(max_output_tokens=TOKENS)
        assert text == text_of(TOKENS)


async def test_an_answer_continues_at_home_if_the_edge_of_the_other_region_drains():
    async with two_regions(us=[paused("us-1")]) as regions:
        regions.shed_at_home()
        answering = asyncio.create_task(regions.answer(max_output_tokens=TOKENS))
        await asyncio.wait_for(regions.us.workers[0].paused.get(), 20.0)
        await wait_for(regions.home, requests_running=1)
        await regions.us.drain()
        text, _ = await answering
        assert text == text_of(TOKENS)
        assert await settled(regions.home) == (2, TOKENS, "length", "home-1")


async def test_a_worker_that_is_lost_in_the_other_region_is_replaced_there():
    first, second = paused("us-1"), FakeWorker("us-2")
    async with two_regions(us=[first, second]) as regions:
        regions.shed_at_home()
        answering = asyncio.create_task(regions.answer(max_output_tokens=TOKENS))
        await asyncio.wait_for(first.paused.get(), 20.0)
        first.cut_streams()
        text, _ = await answering
        assert text == text_of(TOKENS)
        assert await settled(regions.home) == (2, TOKENS, "length", "region:us")
        assert [each.emitted for each in second.starts] == [2]
        assert regions.home.workers[0].starts == []
        await regions.at_rest()


@pytest.mark.parametrize(
    "other", [{"us_settings": {"max_guests": 0}}, {"us": [FakeWorker("us-1", digest="d2")]}], ids=["full", "version"]
)
async def test_a_region_without_room_or_the_same_version_rejects(other):
    async with two_regions(**other) as regions:
        regions.shed_at_home()
        assert (await rejection_of(regions)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert regions.us.queue.tickets == []
        await regions.at_rest()


async def test_an_offer_that_is_not_answered_ends_in_the_rejection_at_home():
    async with two_regions() as regions:
        regions.us.queue.on_frame = lambda *_: None
        regions.shed_at_home()
        assert (await rejection_of(regions)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await settled(regions.home) == (0, 0, "shed", "")
        await regions.at_rest()


async def test_log_probabilities_come_back():
    async with two_regions() as regions:
        regions.shed_at_home()
        sampling = Sampling(logprobs=True, top_logprobs=2)
        deltas = [each.delta async for each in regions.home.generate(max_output_tokens=TOKENS, sampling=sampling)]
        assert [value for each in deltas for value in each.logprobs] == [-0.5] * TOKENS
        assert sum(len(each.top_token_ids) for each in deltas) == 2 * TOKENS


async def test_a_stop_string_ends_the_run_in_the_other_region():
    async with two_regions() as regions:
        regions.shed_at_home()
        text, finished = await regions.answer(max_output_tokens=200, stop=["d"])
        assert text == "abc"
        assert finished.stop_string == "d"
        await regions.at_rest()
