"""Requests that leave their region: offered by one edge, run by another, charged and answered at home."""

import asyncio

import grpc
import pytest

from edge_mesh import KEY, FakeWorker, text_of
from penstock.v1.inference_pb2 import PRIORITY_STANDARD, Sampling
from two_regions import HOME_WORKER, US_WORKER, full, two_regions, wait_for


async def settled(mesh):
    settle = await asyncio.wait_for(mesh.auth.settles.get(), 20.0)
    return settle.prompt_tokens, settle.output_tokens, settle.outcome, settle.worker


async def test_a_rejected_request_runs_in_another_region_and_is_charged_at_home():
    async with two_regions() as regions:
        regions.shed_at_home()
        text, finished = await regions.answer(max_output_tokens=5, sampling=Sampling(seed=7))
        assert text == text_of(5)
        assert (finished.usage.prompt_tokens, finished.usage.output_tokens) == (2, 5)
        assert await settled(regions.home) == (2, 5, "length", "region:us")
        assert regions.home.workers[0].starts == []
        [start] = regions.us.workers[0].starts
        assert (start.sampling.seed, start.max_output_tokens, start.emitted) == (7, 5, 0)
        [ticket] = regions.us.queue.tickets
        assert (ticket.tenant_id, ticket.priority, ticket.weight) == ("acme", PRIORITY_STANDARD, 1.0)
        assert ticket.away_nanos > 0
        assert regions.us.auth.reserves == []
        assert regions.us.auth.settles.empty()
        await wait_for(regions.us, guests=0, active_requests=0)
        await wait_for(regions.home, active_requests=0, reservations_open=0)
