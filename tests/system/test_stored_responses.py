"""Responses by id through a whole mesh, with the official client: stored, continued, in the background, elsewhere."""

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager

import openai
import pytest

from mesh import running_mesh, snapshot, wait_at_rest, wait_for_figures
from penstock.local_mesh.operator_channels import operator_channel
from penstock.v1.admin_pb2 import CreateKeyRequest, PutTenantRequest, Tenant
from penstock.v1.admin_pb2_grpc import AdminStub
from tiny_model import write_tiny_model

TIMEOUT_S = 60.0  # bound of every wait
TURNS = 20
SETTINGS = ("PENSTOCK_WORKER_THREADS=1",)
SLOW = ("PENSTOCK_WORKER_SIM_BASE_S=0.02",)  # 50 tokens/s
ANSWER = {"temperature": 0.0, "extra_body": {"ignore_eos": True, "seed": 7}}  # the engine `sim` draws by seed


@asynccontextmanager
async def edges_of(mesh, api_key=""):
    """A client of each edge."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                openai.AsyncOpenAI(base_url=f"http://{each.http}/v1", api_key=api_key or mesh.api_key, max_retries=0)
            )
            for each in mesh.plan.processes_of("edge")
        ]


async def model_of(api):
    return (await api.models.list()).data[0].id


def plain(event):
    """An event without what the time of the call decides."""
    return event.to_dict()


async def events_of(stream):
    async with asyncio.timeout(TIMEOUT_S):
        return [plain(each) async for each in stream]


async def ended(api, response_id):
    """Retrieve a response until it has ended."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            found = await api.responses.retrieve(response_id)
            if found.status not in ("queued", "in_progress"):
                return found
            await asyncio.sleep(0.05)


async def test_chained_turns_are_one_conversation_whose_prefix_is_cached(tmp_path):
    model_folder = str(write_tiny_model(tmp_path / "long", context=4096))
    async with running_mesh(model=model_folder, edges=2, settings=SETTINGS) as mesh, edges_of(mesh) as edges:
        model, previous, turns, cached, prompts = await model_of(edges[0]), None, [], [], []
        for number in range(TURNS):
            said = f"turn {number}"
            options = {**ANSWER, "model": model, "max_output_tokens": 8}
            chained = await edges[number % 2].responses.create(input=said, previous_response_id=previous, **options)
            turns.append({"role": "user", "content": said})
            at_once = await edges[0].responses.create(input=turns, store=False, **options)
            assert chained.output_text == at_once.output_text
            assert (chained.previous_response_id, chained.store, at_once.store) == (previous, True, False)
            turns.append({"role": "assistant", "content": chained.output_text})
            prompts.append(chained.usage.input_tokens)
            cached.append(chained.usage.input_tokens_details.cached_tokens)
            previous = chained.id
        known = sum(prompts[:-1]) + 8 * (TURNS - 1)  # of the turn before, its answer included, after the first turn
        assert sum(cached[1:]) >= 0.9 * known
        await wait_at_rest(mesh)


async def test_a_stored_response_is_the_same_at_every_edge_and_no_other_tenant_s(tiny_model):
    async with running_mesh(model=tiny_model, edges=2, settings=SETTINGS) as mesh, edges_of(mesh) as edges:
        model = await model_of(edges[0])
        stream = await edges[0].responses.create(
            model=model, input="hi", instructions="Be brief.", max_output_tokens=24, stream=True, **ANSWER
        )
        events = await events_of(stream)
        response_id = events[0]["response"]["id"]
        found = await edges[1].responses.retrieve(response_id)
        assert found.to_dict() == events[-1]["response"]
        assert await events_of(await edges[1].responses.retrieve(response_id, stream=True)) == events
        for start in (0, 3, 10, len(events) - 2, len(events) - 1):
            again = await edges[1].responses.retrieve(response_id, stream=True, starting_after=start)
            assert await events_of(again) == (events[start + 1 :] or events[-1:]), "a stream has an end in any case"
        items = await edges[1].responses.input_items.list(response_id)
        assert [each.content[0].text for each in items.data] == ["hi"]
        async with edges_of(mesh, await key_of_another_tenant(mesh)) as (stranger, _):
            for call in (stranger.responses.retrieve, stranger.responses.cancel, stranger.responses.delete):
                with pytest.raises(openai.NotFoundError, match=response_id):
                    await call(response_id)
            with pytest.raises(openai.NotFoundError, match=response_id):
                await stranger.responses.create(model=model, input="hi", previous_response_id=response_id)
        await edges[0].responses.delete(response_id)
        with pytest.raises(openai.NotFoundError):
            await edges[1].responses.retrieve(response_id)
        await wait_at_rest(mesh)


async def key_of_another_tenant(mesh):
    (auth,) = mesh.plan.processes_of("auth")
    async with operator_channel(auth.admin_address) as to_auth:
        admin = AdminStub(to_auth)
        await admin.PutTenant(PutTenantRequest(tenant=Tenant(tenant_id="umbrella")))
        return (await admin.CreateKey(CreateKeyRequest(tenant_id="umbrella"))).secret


async def test_calls_that_ask_for_nothing_stored_store_nothing_and_wrong_ones_are_named(tiny_model):
    async with running_mesh(model=tiny_model, settings=SETTINGS) as mesh, edges_of(mesh) as (edge,):
        model = await model_of(edge)
        unstored = await edge.responses.create(model=model, input="hi", max_output_tokens=4, store=False)
        with pytest.raises(openai.NotFoundError):
            await edge.responses.retrieve(unstored.id)
        with pytest.raises(openai.BadRequestError, match="store"):
            await edge.responses.create(model=model, input="hi", background=True, store=False)
        with pytest.raises(openai.BadRequestError, match="do not fit the context"):
            await edge.responses.create(model=model, input="hi", max_output_tokens=10**6, background=True)
        headers = {"x-request-id": "mine"}
        await edge.responses.create(model=model, input="hi", max_output_tokens=4, extra_headers=headers)
        with pytest.raises(openai.ConflictError, match="resp_mine"):
            await edge.responses.create(model=model, input="hi", max_output_tokens=4, extra_headers=headers)
        (auth,) = mesh.plan.processes_of("auth")
        await wait_for_figures(auth.admin_address, lambda found: found["stored_responses"] == 1)
        await wait_at_rest(mesh)


async def test_a_response_in_the_background_goes_on_without_its_caller_and_is_cancelled_from_any_edge(tiny_model):
    async with (
        running_mesh(model=tiny_model, edges=2, engine="sim", settings=SLOW) as mesh,
        edges_of(mesh) as edges,
    ):
        options = {**ANSWER, "model": await model_of(edges[0]), "background": True}
        begun = await edges[0].responses.create(input="hi", max_output_tokens=60, **options)
        assert (begun.status, begun.background, begun.output) == ("queued", True, [])
        follower = asyncio.create_task(events_of(await edges[1].responses.retrieve(begun.id, stream=True)))
        with pytest.raises(openai.BadRequestError, match="in progress"):
            await edges[1].responses.create(
                model=options["model"], input="more", previous_response_id=begun.id, max_output_tokens=4
            )
        whole = await ended(edges[1], begun.id)
        assert whole.usage.output_tokens == 60
        assert (await follower)[-1]["response"] == whole.to_dict()
        long = await edges[0].responses.create(input="hi", max_output_tokens=400, **options)
        await asyncio.sleep(0.5)
        cancelled = await edges[1].responses.cancel(long.id)
        assert cancelled.status == "cancelled"
        assert whole.output_text.startswith(cancelled.output_text[:4])
        await wait_at_rest(mesh)


@pytest.mark.parametrize("is_background", [True, False])
async def test_a_client_whose_edge_died_reads_on_at_another_edge(tiny_model, is_background):
    async with (
        running_mesh(model=tiny_model, edges=2, engine="sim", settings=SLOW) as mesh,
        edges_of(mesh) as edges,
    ):
        body = {**ANSWER, "model": await model_of(edges[0]), "input": "hi", "max_output_tokens": 120, "stream": True}
        calm = await events_of(await edges[1].responses.create(**body))
        received = []
        with pytest.raises(openai.APIError):
            async for event in await edges[0].responses.create(background=is_background, **body):
                received.append(plain(event))
                if len(received) == 30:
                    mesh.processes.named("edge-1").process.kill()
        response_id, last = received[0]["response"]["id"], received[-1]["sequence_number"]
        began = time.monotonic()
        rest = await events_of(await edges[1].responses.retrieve(response_id, stream=True, starting_after=last))
        whole = [*received, *rest]
        assert [each["sequence_number"] for each in whole] == list(range(len(calm)))
        assert [each.get("delta") for each in whole] == [each.get("delta") for each in calm]
        assert whole[-1]["response"]["usage"]["output_tokens"] == 120
        assert time.monotonic() - began < TIMEOUT_S
        assert (await edges[1].responses.retrieve(response_id)).to_dict() == whole[-1]["response"]


async def test_an_edge_that_drains_gives_its_background_responses_away(tiny_model):
    async with (
        running_mesh(model=tiny_model, edges=2, engine="sim", settings=SLOW) as mesh,
        edges_of(mesh) as edges,
    ):
        options = {**ANSWER, "model": await model_of(edges[0]), "background": True, "max_output_tokens": 150}
        begun = [await edges[0].responses.create(input=f"number {each}", **options) for each in range(4)]
        await wait_for_figures(
            mesh.processes.named("edge-1").spec.admin_address, lambda found: found["responses_held"] == 4
        )
        await asyncio.sleep(1.0)
        mesh.processes.named("edge-1").process.terminate()
        for each in begun:
            assert (await ended(edges[1], each.id)).usage.output_tokens == 150
        resumed = (await snapshot(mesh.processes.named("edge-2").spec.admin_address)).figures["responses_resumed"]
        assert resumed == 4


async def test_a_store_that_is_away_is_an_error_and_never_a_shorter_context(tiny_model):
    async with running_mesh(model=tiny_model, settings=SETTINGS) as mesh, edges_of(mesh) as (edge,):
        options = {**ANSWER, "model": await model_of(edge), "max_output_tokens": 4}
        first = await edge.responses.create(input="hi", **options)
        mesh.processes.named("auth").process.kill()
        await wait_for_figures(
            mesh.processes.named("edge-1").spec.admin_address, lambda found: found["response_store_links_up"] == 0
        )
        for asked in ({"store": True}, {"background": True}, {"previous_response_id": first.id}):
            with pytest.raises(openai.InternalServerError, match="store of responses") as refused:
                await edge.responses.create(input="more", **asked, **options)
            assert refused.value.status_code == 503
        for call in (edge.responses.retrieve, edge.responses.delete, edge.responses.cancel):
            with pytest.raises(openai.InternalServerError, match="store of responses"):
                await call(first.id)
        assert not (await edge.responses.create(input="hi", **options)).store
        await mesh.restart("auth")
        await wait_for_figures(
            mesh.processes.named("edge-1").spec.admin_address, lambda found: found["response_store_links_up"] == 1
        )
        assert (await edge.responses.retrieve(first.id)).to_dict() == first.to_dict()
        more = await edge.responses.create(input="more", previous_response_id=first.id, **options)
        assert more.usage.input_tokens > first.usage.input_tokens
