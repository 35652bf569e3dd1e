"""A real edge with routes: the model that serves a request, in all APIs."""

import asyncio
from collections import Counter
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from edge_calls import read_answer, rejected_call, wait_at_rest
from edge_mesh import KEY, TIMEOUT_S, FakeWorker, edge_mesh, token_at
from edge_sessions import session
from penstock.chassis.errors import Overloaded
from penstock.client.request import embed_request
from penstock.mesh.v1.queue_pb2 import RejectionWindow
from penstock.v1.inference_pb2 import CountTokensRequest, ListModelsRequest, Resume
from penstock.v1.route_pb2 import (
    ROUTE_AFFINITY_CONVERSATION,
    ROUTE_AFFINITY_KEY,
    ROUTE_AFFINITY_UNSPECIFIED,
    Route,
    RouteDefinition,
    RouteTarget,
)


def definition(weights, affinity=ROUTE_AFFINITY_UNSPECIFIED, fallbacks=()):
    targets = [RouteTarget(model=model, weight=weight) for model, weight in weights.items()]
    return RouteDefinition(targets=targets, affinity=affinity, fallbacks=fallbacks)


def route(weights, *more, name="gpt-4o", tenant_id="", former=None, **others):
    return Route(name=name, tenant_id=tenant_id, definition=definition(weights, *more, **others), former=former)


def two_models():
    return [FakeWorker("w1", model="a", digest="da"), FakeWorker("w2", model="b", digest="db")]


async def set_routes(mesh, *routes):
    """Send routes, and wait until the edge has them."""
    mesh.auth.send_routes(*routes)
    await listed(mesh, {each.name for each in routes})


async def listed(mesh, names=frozenset()):
    """Wait until the edge lists these routes."""
    async with asyncio.timeout(TIMEOUT_S):
        while sorted(names) != await listed_routes(mesh):  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.005)


async def listed_routes(mesh):
    models = (await mesh.inference.ListModels(ListModelsRequest(), metadata=KEY)).models
    return sorted(each.name for each in models if each.targets)


async def serve(mesh, *models):
    """Keep the workers of these models only, and wait until the edge knows."""
    mesh.queue.workers[:] = [each for each in mesh.workers if each.model in models]
    mesh.queue.send_catalog()
    await asyncio.sleep(0.05)


async def model_of(mesh, metadata=KEY, **fields):
    """Return the model that serves a request of the route."""
    accepted, *_ = await read_answer(mesh.generate(metadata=metadata, model="gpt-4o", max_output_tokens=1, **fields))
    return accepted.model


async def test_a_route_is_served_and_charged_as_its_target():
    async with edge_mesh(fakes=two_models()) as mesh:
        error = await rejected_call(mesh.generate(model="gpt-4o"))
        assert error.reason == "MODEL_UNKNOWN"
        await set_routes(mesh, route({"b": 1}))
        with capture_logs() as lines:
            assert await model_of(mesh) == "b"
            await wait_at_rest(mesh)
        [line] = [each for each in lines if each["event"] == "ticket_done"]
        assert (line["requested_model"], line["model"]) == ("gpt-4o", "b")
        assert [each.model for each in mesh.auth.reserves] == ["b"]
        assert [each.model for each in mesh.queue.tickets] == ["b@db"]
        figures = await mesh.figures()
        assert (figures["routes"], figures["routed"], figures["routed_to_fallback"]) == (1, 1, 0)


async def test_a_route_may_hide_a_model_that_is_one_of_its_targets():
    async with edge_mesh(fakes=two_models()) as mesh:
        await set_routes(mesh, route({"a": 1, "b": 1}, name="a"))
        served = [await read_answer(mesh.generate(model="a", max_output_tokens=1)) for _ in range(30)]
        assert {accepted.model for accepted, *_ in served} == {"a", "b"}
        accepted, *_ = await read_answer(mesh.generate(model="b", max_output_tokens=1))
        assert accepted.model == "b"


async def test_all_embeddings_of_a_call_are_of_one_model_of_its_route():
    fakes = two_models()
    for each, size in zip(fakes, (3, 4), strict=True):
        each.embedding_size = size
    async with edge_mesh(fakes=fakes) as mesh:
        await set_routes(mesh, route({"a": 1, "b": 1}, name="a"))
        request = embed_request(["hi"] * 6, "a", None)
        answers = [await mesh.inference.Embed(request, metadata=KEY, timeout=TIMEOUT_S) for _ in range(20)]
        assert {answer.model for answer in answers} == {"a", "b"}
        for answer in answers:
            assert {len(each.values) for each in answer.embeddings} == {3 if answer.model == "a" else 4}
        assert (await mesh.figures())["routed"] >= len(answers)
        await wait_at_rest(mesh)


async def test_models_and_routes_are_listed_with_targets_limits_and_workers():
    async with edge_mesh(fakes=two_models()) as mesh:
        await set_routes(mesh, route({"a": 95, "b": 5}), route({"a": 1}, name="x"))
        models = (await mesh.inference.ListModels(ListModelsRequest(), metadata=KEY)).models
        assert [(each.name, each.workers_hint, len(each.targets)) for each in models] == [
            *[("a", 1, 0), ("b", 1, 0)],
            *[("gpt-4o", 2, 2), ("x", 1, 1)],
        ]
        assert [(each.model, each.weight) for each in models[2].targets] == [("a", 95), ("b", 5)]
        assert {each.context_length for each in models} == {512}


async def test_a_request_id_decides_without_affinity_and_requests_are_divided():
    async with edge_mesh(fakes=two_models()) as mesh:
        await set_routes(mesh, route({"a": 1, "b": 1}))
        served = {number: await model_of(mesh, request_id=f"r{number}") for number in range(20)}
        assert set(served.values()) == {"a", "b"}
        assert {number: await model_of(mesh, request_id=f"r{number}") for number in range(20)} == served


async def test_all_requests_of_a_key_stay_on_one_target():
    async with edge_mesh(fakes=two_models()) as mesh:
        await set_routes(mesh, route({"a": 1, "b": 1}, ROUTE_AFFINITY_KEY))
        assert len({await model_of(mesh) for _ in range(20)}) == 1


async def test_all_requests_of_a_conversation_stay_on_one_target():
    async with edge_mesh(fakes=two_models()) as mesh:
        await set_routes(mesh, route({"a": 1, "b": 1}, ROUTE_AFFINITY_CONVERSATION))
        served = Counter()
        for number in range(20):
            metadata = (*KEY, ("x-session-affinity", f"conversation-{number}"))
            [model] = {await model_of(mesh, metadata) for _ in range(3)}
            served[model] += 1
        assert set(served) == {"a", "b"}
        assert len({await model_of(mesh) for _ in range(10)}) == 1, "without a name, the key decides"


async def test_the_route_of_a_tenant_is_used_by_that_tenant_alone():
    async with edge_mesh(fakes=two_models()) as mesh:
        own, of_all = route({"b": 1}, tenant_id="acme"), route({"a": 1})
        await set_routes(mesh, own)
        assert await model_of(mesh) == "b"
        await set_routes(mesh, of_all, own, route({"a": 1}, name="other"))
        assert await model_of(mesh) == "b"
        mesh.auth.send_routes(route({"b": 1}, tenant_id="z"))
        await listed(mesh)
        assert (await rejected_call(mesh.generate(model="gpt-4o"))).reason == "MODEL_UNKNOWN"


async def test_a_fallback_serves_while_the_target_has_no_worker():
    async with edge_mesh(fakes=two_models()) as mesh:
        await set_routes(mesh, route({"a": 1}, fallbacks=["unknown", "b"]))
        assert await model_of(mesh) == "a"
        await serve(mesh, "b")
        assert await model_of(mesh) == "b"
        await serve(mesh, "a", "b")
        assert await model_of(mesh) == "a"
        figures = await mesh.figures()
        assert (figures["routed"], figures["routed_to_fallback"]) == (2, 1)


async def test_a_waiting_request_moves_to_the_fallback_when_the_worker_of_its_target_is_gone():
    async with edge_mesh(fakes=two_models()) as mesh:
        await set_routes(mesh, route({"a": 1}, fallbacks=["b"]))
        mesh.queue.holds_tickets = True
        call = mesh.generate(model="gpt-4o", max_output_tokens=2)
        ticket = await mesh.queue.held_tickets.get()
        assert ticket.model == "a@da"
        mesh.queue.holds_tickets = False
        await serve(mesh, "b")
        accepted, _, ids, _ = await read_answer(call)
        assert (accepted.model, ids) == ("b", [token_at(0), token_at(1)])
        assert [(each.model, each.attempt) for each in mesh.queue.tickets] == [("a@da", 1), ("b@db", 2)]
        assert (await mesh.figures())["routed_again"] == 1
        await wait_at_rest(mesh)


async def test_a_waiting_request_with_output_or_without_a_fallback_keeps_its_target():
    async with edge_mesh(fakes=two_models()) as mesh:
        await set_routes(mesh, route({"a": 1}, fallbacks=["b"]))
        mesh.queue.holds_tickets = True
        resume = Resume(token_ids=[token_at(0)], model_version="da")
        calls = [
            mesh.generate(model="gpt-4o", max_output_tokens=2, resume=resume),
            mesh.generate(model="a", max_output_tokens=2),
        ]
        for _ in calls:
            await mesh.queue.held_tickets.get()
        await serve(mesh, "b")
        assert [each.model for each in mesh.queue.tickets] == ["a@da", "a@da"]
        for call in calls:
            call.cancel()


async def test_a_route_whose_models_have_no_worker_is_unavailable_for_a_moment():
    async with edge_mesh(fakes=two_models()) as mesh:
        await set_routes(mesh, route({"a": 1}))
        mesh.auth.send_routes(route({"c": 1}, fallbacks=["d"]))
        await listed(mesh)
        error = await rejected_call(mesh.generate(model="gpt-4o"))
        assert (error.code.name, error.reason, error.retry_after) == ("UNAVAILABLE", "NO_WORKER", 1.0)


@pytest.mark.parametrize("weights", [{"a": 1, "b": 999_999}, {"a": 1}])
async def test_a_resumed_answer_stays_on_the_target_that_began_it(weights):
    async with edge_mesh(fakes=two_models()) as mesh:
        former = definition({"b": 1})
        await set_routes(mesh, route(weights, former=former))
        for version, model in (("da", "a"), ("db", "b")):
            resume = Resume(token_ids=[token_at(0)], model_version=version)
            accepted, *_ = await read_answer(mesh.generate(model="gpt-4o", max_output_tokens=3, resume=resume))
            assert (accepted.model, accepted.model_version) == (model, version)


async def test_tokens_are_counted_for_the_target():
    fakes = two_models()
    fakes[1].bos_token_id = 1
    async with edge_mesh(fakes=fakes) as mesh:
        await set_routes(mesh, route({"b": 1}))
        counts = [
            (await mesh.inference.CountTokens(CountTokensRequest(model=model, text="hi"), metadata=KEY)).prompt_tokens
            for model in ("a", "b", "gpt-4o")
        ]
        assert counts == [counts[0], counts[0] + 1, counts[0] + 1]


async def test_routes_stay_while_auth_is_away():
    async with edge_mesh(fakes=two_models()) as mesh:
        await set_routes(mesh, route({"b": 1}))
        mesh.auth.routes = []  # it sends none to a stream that begins
        for peer in list(mesh.auth.peers):
            peer.close("lost")
        async with asyncio.timeout(TIMEOUT_S):
            while not mesh.auth.peers:  # noqa: ASYNC110  # as above
                await asyncio.sleep(0.005)
        assert await model_of(mesh) == "b"


async def test_a_session_is_routed_and_may_be_one_conversation():
    async with edge_mesh(fakes=two_models()) as mesh:
        await set_routes(mesh, route({"a": 1, "b": 1}, ROUTE_AFFINITY_CONVERSATION))
        served = set()
        for number in range(12):
            metadata = (*KEY, ("x-session-id", f"conversation-{number}"))
            async with session(mesh, metadata) as client:
                for handle in range(2):
                    client.generate(handle, model="gpt-4o", max_output_tokens=1)
                accepted = [(await client.next_frame("accepted")).accepted.model for _ in range(2)]
                assert len(set(accepted)) == 1
                served |= set(accepted)
        assert served == {"a", "b"}


async def test_an_overloaded_target_rejects_requests_of_its_route_at_the_edge(monkeypatch):
    monkeypatch.setattr("penstock.edge.admission.rejection_cache.PROBE_INTERVAL_S", TIMEOUT_S)
    monkeypatch.setattr("penstock.edge.admission.rejection_cache.MAX_REJECTION_TTL_S", TIMEOUT_S)
    async with edge_mesh(fakes=two_models()) as mesh:
        await set_routes(mesh, route({"a": 1}))
        mesh.queue.sheds = [Overloaded("full", retry_after=TIMEOUT_S)]
        lasting = timedelta(seconds=TIMEOUT_S)
        mesh.queue.shed_windows = [RejectionWindow(duration=lasting, min_prompt_tokens=1, min_output_tokens=1)]
        errors = [await rejected_call(mesh.generate(model="gpt-4o", max_output_tokens=1)) for _ in range(2)]
        assert [each.reason for each in errors] == ["OVERLOADED", "OVERLOADED"]
        assert len(mesh.queue.tickets) == 1
        assert (await mesh.figures())["rejected_by_edge"] == 1
        mesh.auth.send_routes(route({"b": 1}))
        async with asyncio.timeout(TIMEOUT_S):
            while (await listed_targets(mesh)) != ["b"]:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.005)
        assert await model_of(mesh) == "b", "the other model is not overloaded"


async def listed_targets(mesh):
    models = (await mesh.inference.ListModels(ListModelsRequest(), metadata=KEY)).models
    return [target.model for each in models for target in each.targets]
