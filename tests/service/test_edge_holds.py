"""A real edge whose route holds requests: they wait for the first worker of their model, within bounds."""

import asyncio

import pytest

from edge_calls import read_answer, rejected_call, wait_at_rest
from edge_mesh import KEY, TIMEOUT_S, FakeWorker, edge_mesh
from penstock.client.request import embed_request
from penstock.edge.gateway import EXPECTED_WAIT_HEADER
from penstock.v1.inference_pb2 import ListModelsRequest
from penstock.v1.route_pb2 import Route, RouteDefinition, RouteHold, RouteTarget

MODEL = "m"


def held_route(name=MODEL, *, seconds=60, requests=10, load_seconds=1, targets=(MODEL,)):
    definition = RouteDefinition(
        targets=[RouteTarget(model=each, weight=1) for each in targets],
        hold=RouteHold(seconds=seconds, requests=requests, load_seconds=load_seconds),
    )
    return Route(name=name, definition=definition, revision=1)


async def declare(mesh, *routes):
    mesh.auth.send_routes(*routes)
    await until(mesh, routes=len(routes))


async def until(mesh, **figures):
    async with asyncio.timeout(TIMEOUT_S):
        while not figures.items() <= (await mesh.figures()).items():  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.005)


def mesh_of(*workers, **settings):
    return edge_mesh(fakes=[FakeWorker("w1", model=MODEL, digest="d"), *workers], **settings)


def stop_workers(mesh):
    mesh.queue.workers.clear()
    mesh.queue.send_catalog()


def start_workers(mesh):
    mesh.queue.workers[:] = mesh.workers
    mesh.queue.send_catalog()


async def test_a_request_waits_for_the_first_worker_and_is_reported_to_the_queue():
    async with mesh_of() as mesh:
        await declare(mesh, held_route())
        stop_workers(mesh)
        await asyncio.sleep(0.05)
        call = mesh.generate(model=MODEL, max_output_tokens=2, explain=True)
        reading = asyncio.ensure_future(read_answer(call))
        async with asyncio.timeout(TIMEOUT_S):
            assert await mesh.queue.held_requests.get() == {MODEL: 1}
        assert not mesh.queue.tickets
        assert dict(await call.initial_metadata())[EXPECTED_WAIT_HEADER] == "1"
        start_workers(mesh)
        accepted, text, _, finished = await reading
        assert (accepted.model, text) == (MODEL, "ab")
        assert "hold" in [each.name for each in finished.timeline.stages]
        async with asyncio.timeout(TIMEOUT_S):
            while await mesh.queue.held_requests.get():
                pass  # reports may repeat; the last one is empty
        call = mesh.generate(model=MODEL, max_output_tokens=1)
        await read_answer(call)
        assert EXPECTED_WAIT_HEADER not in dict(await call.initial_metadata())
        figures = await wait_at_rest(mesh)
        assert (figures["held"], figures["held_total"], figures["hold_refused"]) == (0, 1, 0)


async def test_an_edge_that_has_never_seen_the_model_holds_its_requests():
    async with mesh_of(startup_timeout=0.1) as mesh:
        await declare(mesh, held_route("new", targets=("new",)))
        reading = asyncio.ensure_future(read_answer(mesh.generate(model="new", max_output_tokens=1)))
        async with asyncio.timeout(TIMEOUT_S):
            assert await mesh.queue.held_requests.get() == {"new": 1}
        mesh.workers[0].model = "new"
        mesh.queue.send_catalog()
        assert (await reading)[0].model == "new"


async def test_requests_beyond_the_bound_are_refused_with_the_load_time():
    async with mesh_of() as mesh:
        await declare(mesh, held_route(requests=1, seconds=3600, load_seconds=20))
        stop_workers(mesh)
        await asyncio.sleep(0.05)
        held = mesh.generate(model=MODEL)
        await until(mesh, held=1)
        error = await rejected_call(mesh.generate(model=MODEL))
        assert error.reason == "NO_WORKER"
        assert 1 <= error.retry_after <= 20
        held.cancel()
        await until(mesh, held=0, active_requests=0)


async def test_a_request_whose_deadline_is_before_the_worker_is_refused_and_starts_it():
    async with mesh_of() as mesh:
        await declare(mesh, held_route(load_seconds=3_600, seconds=3_600))
        stop_workers(mesh)
        await asyncio.sleep(0.05)
        error = await rejected_call(mesh.generate(model=MODEL))
        assert (error.reason, round(error.retry_after)) == ("NO_WORKER", 3_600)
        async with asyncio.timeout(TIMEOUT_S):
            assert await mesh.queue.held_requests.get() == {MODEL: 1}


async def test_a_ticket_that_the_queue_rejects_without_a_worker_is_held():
    async with mesh_of() as mesh:
        await declare(mesh, held_route())
        mesh.queue.holds_tickets = True
        reading = asyncio.ensure_future(read_answer(mesh.generate(model=MODEL, max_output_tokens=1)))
        ticket = await mesh.queue.held_tickets.get()
        stop_workers(mesh)
        await asyncio.sleep(0.05)
        mesh.queue.reject(ticket, "NO_WORKER")
        await until(mesh, held=1)
        mesh.queue.holds_tickets = False
        start_workers(mesh)
        assert (await reading)[0].model == MODEL


async def test_a_declared_model_is_listed_without_a_worker():
    async with mesh_of() as mesh:
        await declare(mesh, held_route())
        stop_workers(mesh)
        await asyncio.sleep(0.05)
        listed = (await mesh.inference.ListModels(ListModelsRequest(), metadata=KEY)).models
        assert [each.name for each in listed] == [MODEL]


@pytest.mark.parametrize("is_held", [False, True])
async def test_only_declared_models_are_held(is_held):
    async with mesh_of(model_wait_timeout=0.05) as mesh:
        if is_held:
            await declare(mesh, held_route())
        error = await rejected_call(mesh.generate(model="other"))
        assert error.reason == "MODEL_UNKNOWN"
        assert mesh.queue.held_requests.empty()


async def test_a_call_for_embeddings_waits_for_the_first_worker():
    async with edge_mesh(fakes=[FakeWorker("w1", model=MODEL, digest="d", embedding_size=4)]) as mesh:
        await declare(mesh, held_route())
        stop_workers(mesh)
        await asyncio.sleep(0.05)
        request = embed_request(["a", "b"], MODEL, None)
        call = asyncio.ensure_future(mesh.inference.Embed(request, metadata=KEY))
        await until(mesh, held=1)
        start_workers(mesh)
        assert len((await call).embeddings) == 2
