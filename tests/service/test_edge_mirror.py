"""A real edge that copies requests to the mirror of their route."""

import asyncio

from edge_calls import read_answer, rejected_call, wait_at_rest
from edge_mesh import TIMEOUT_S, FakeWorker, edge_mesh, token_at
from penstock.chassis.errors import Overloaded
from penstock.v1.inference_pb2 import PRIORITY_BATCH, Resume
from penstock.v1.route_pb2 import Route, RouteDefinition, RouteTarget

MIRRORED = Route(
    name="gpt-4o", definition=RouteDefinition(targets=[RouteTarget(model="a", weight=1)], mirror="b", mirror_share=1.0)
)
KEY = {"mirror_key": "good"}


def two_models():
    return [FakeWorker("w1", model="a", digest="da"), FakeWorker("w2", model="b", digest="db")]


async def wait_for_figures(mesh, **expected):
    """Wait until the edge has these figures."""
    async with asyncio.timeout(TIMEOUT_S):
        while {name: (await mesh.figures())[name] for name in expected} != expected:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.005)


async def set_route(mesh):
    mesh.auth.send_routes(MIRRORED)
    await wait_for_figures(mesh, routes=1)


async def test_a_copy_runs_as_a_request_of_the_operator_of_the_lowest_class():
    async with edge_mesh(fakes=two_models(), **KEY) as mesh:
        await set_route(mesh)
        accepted, _, ids, _ = await read_answer(mesh.generate(model="gpt-4o", max_output_tokens=2))
        assert (accepted.model, ids) == ("a", [token_at(0), token_at(1)])
        await wait_for_figures(mesh, mirrored=1, mirror_copies=0)
        first, second = (worker.starts for worker in mesh.workers)
        assert [list(each.token_ids) for each in first] == [list(each.token_ids) for each in second]
        own, copy = mesh.auth.reserves
        assert (own.model, copy.model, copy.priority) == ("a", "b", PRIORITY_BATCH)
        await wait_at_rest(mesh)


async def test_nothing_is_copied_without_a_key_of_the_operator():
    async with edge_mesh(fakes=two_models()) as mesh:
        await set_route(mesh)
        await read_answer(mesh.generate(model="gpt-4o", max_output_tokens=2))
        await wait_at_rest(mesh)
        assert len(mesh.auth.reserves) == 1


async def test_resumed_answers_and_requests_of_models_are_not_copied():
    async with edge_mesh(fakes=two_models(), **KEY) as mesh:
        await set_route(mesh)
        resume = Resume(token_ids=[token_at(0)], model_version="da")
        await read_answer(mesh.generate(model="gpt-4o", max_output_tokens=2, resume=resume))
        await read_answer(mesh.generate(model="a", max_output_tokens=2))
        await wait_at_rest(mesh)
        assert [each.model for each in mesh.auth.reserves] == ["a", "a"]


async def test_copies_beyond_the_limit_are_dropped_and_delay_no_request():
    async with edge_mesh(fakes=two_models(), max_mirror_copies=2, **KEY) as mesh:
        await set_route(mesh)
        mesh.workers[1].pause_at_index = 1  # copies do not end
        for _ in range(5):
            await read_answer(mesh.generate(model="gpt-4o", max_output_tokens=2))
        await wait_for_figures(mesh, mirror_copies=2, mirror_dropped=3, mirrored=0)
        for _ in range(2):
            mesh.workers[1].send_tokens(await mesh.workers[1].paused.get())
        await wait_for_figures(mesh, mirror_copies=0, mirrored=2)


async def test_a_copy_that_fails_is_counted_and_its_request_does_not_notice():
    async with edge_mesh(fakes=two_models(), mirror_key="unknown") as mesh:
        await set_route(mesh)
        *_, finished = await read_answer(mesh.generate(model="gpt-4o", max_output_tokens=2))
        assert finished.usage.output_tokens == 2
        await wait_for_figures(mesh, mirror_failed=1, mirrored=0, mirror_copies=0)


async def test_a_request_that_auth_rejects_is_not_copied():
    async with edge_mesh(fakes=two_models(), **KEY) as mesh:
        await set_route(mesh)
        mesh.auth.rejections.append(Overloaded("the limit is reached", reason="QUOTA_EXCEEDED"))
        error = await rejected_call(mesh.generate(model="gpt-4o", max_output_tokens=2))
        assert error.reason == "QUOTA_EXCEEDED"
        await wait_at_rest(mesh)
        assert not mesh.auth.reserves
        assert not any(worker.starts for worker in mesh.workers)
