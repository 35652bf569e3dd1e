"""Readers that are slow together: the edge ends the slowest of them and nobody else."""

import asyncio

import pytest

from active_requests import generation_plan, lease, token_effects
from penstock.chassis.clocks import WallMonotonicClock
from penstock.chassis.errors import Aborted
from penstock.edge.config import EdgeConfig
from penstock.edge.explain.history import RequestHistory
from penstock.edge.lifecycle.active_request import ActiveRequest
from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.lifecycle.observability.telemetry import RequestTelemetry
from penstock.edge.lifecycle.record import RequestState
from penstock.edge.lifecycle.sinks import ResponseStream
from penstock.edge.models.catalog import ModelCatalog
from penstock.edge.models.planner import RequestPlanner
from penstock.edge.request.spec import RequestSpec, TextInput
from penstock.edge.runner import RequestRunner
from penstock.edge.text.executor import TokenizerPools
from penstock.mesh.v1.admission_pb2 import Credential, Identity
from penstock.mesh.v1.worker_pb2 import RunTimes
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, Delta
from penstock.v1.stream_pb2 import Hello

TOKEN_BYTES = 5  # an id and a letter
SPEC = RequestSpec(request_id="", model="tiny", input=TextInput("hi"))


class EdgeRun:
    """Requests that run at a worker; every reader is a stream that the test reads or does not read."""

    def __init__(self, runner):
        self.runner = runner
        self.now = runner.now()

    def start(self, name, *, prompt_bytes=0):
        """Start a request and return it with the stream of its reader."""
        limits = EdgeConfig().lifecycle_limits
        request = ActiveRequest(name, arrived_at=self.now, deadline=self.now + 600, limits=limits)
        request.on_tokenized(generation_plan(max_output_tokens=10_000), self.now)
        request.on_admitted(Identity(tenant_id="acme"), "", self.now)
        request.on_leased(lease(), self.now)
        request.on_run_started()
        stream = ResponseStream(self.runner.requests.memory)
        context = RequestContext(
            request=request,
            request_id=name,
            spec=SPEC,
            credential=Credential(),
            sink=stream,
            telemetry=RequestTelemetry(SPEC, name, "", history=RequestHistory()),
            size_bytes=prompt_bytes,
        )
        self.runner.add(context)
        return context, stream

    def send_tokens(self, context, tokens):
        first = len(context.request.output.token_ids)
        for index in range(first, first + tokens):
            self.runner.apply(context, token_effects(context.request, index, ord("a"), self.now))

    def finish(self, context):
        effects = context.request.on_run_finished(FINISH_REASON_LENGTH, 0, 0, RunTimes(), self.now)
        self.runner.apply(context, effects)


@pytest.fixture
async def edge_run():
    with TokenizerPools(1) as pools:
        clock = WallMonotonicClock()
        catalog = ModelCatalog(clock, pools, wait_timeout=1.0)
        planner = RequestPlanner(catalog, pools, default_output_tokens=16)
        runner = RequestRunner(EdgeConfig(max_held_bytes=16_000), Hello(), catalog, planner, clock)
        yield EdgeRun(runner)
        for context in runner.requests:
            runner.cancel(context)


async def text_of(stream):
    """Return the characters that the reader receives before the error."""
    size = 0
    with pytest.raises(Aborted) as failure:
        async for event in stream:
            size += len(event.text) if isinstance(event, Delta) else 0
    assert failure.value.reason == "CLIENT_TOO_SLOW"
    return size


async def test_the_slowest_reader_is_ended_and_no_other(edge_run):
    requests = {tokens: edge_run.start(str(tokens)) for tokens in (5, 200, 700, 2_200)}
    for tokens, (context, _) in requests.items():
        edge_run.send_tokens(context, tokens)
    edge_run.send_tokens(requests[700][0], 200)
    await asyncio.sleep(0)
    states = [context.request.state for context, _ in requests.values()]
    assert states == [RequestState.RUNNING] * 3 + [RequestState.STOPPING]
    assert await text_of(requests[2_200][1]) == 0
    figures = edge_run.runner.figures()
    assert figures["slow_readers_ended"] == 1
    assert figures["unread_bytes"] == pytest.approx(TOKEN_BYTES * (5 + 200 + 900), abs=4)  # a letter is held back


async def test_an_answer_that_ended_unread_is_dropped_too(edge_run):
    ended, stream = edge_run.start("ended")
    edge_run.send_tokens(ended, 2_000)
    edge_run.finish(ended)
    assert ended.request.is_done
    other, _ = edge_run.start("other")
    edge_run.send_tokens(other, 1_300)
    await asyncio.sleep(0)
    assert other.request.state is RequestState.RUNNING
    assert await text_of(stream) == 0


async def test_a_prompt_that_is_admitted_takes_the_place_of_unread_output(edge_run):
    slow, _ = edge_run.start("slow")
    edge_run.send_tokens(slow, 1_500)
    await asyncio.sleep(0)
    assert slow.request.state is RequestState.RUNNING
    edge_run.runner.requests.check_room(12_000)
    edge_run.start("new", prompt_bytes=12_000)
    await asyncio.sleep(0)
    assert slow.request.state is RequestState.STOPPING
    assert edge_run.runner.figures()["held_bytes"] == 12_000


async def test_prompts_alone_end_no_reader(edge_run):
    healthy, _ = edge_run.start("healthy")
    edge_run.start("prompt", prompt_bytes=12_000)
    edge_run.send_tokens(healthy, 700)
    await asyncio.sleep(0)
    assert healthy.request.state is RequestState.RUNNING


async def test_a_reader_that_reads_in_time_is_never_among_the_slowest(edge_run):
    healthy, stream = edge_run.start("healthy")
    slow, _ = edge_run.start("slow")
    for _ in range(400):
        edge_run.send_tokens(healthy, 10)
        edge_run.send_tokens(slow, 10)
        await anext(stream)
        await asyncio.sleep(0)  # a turn of the event loop
    assert (healthy.request.state, slow.request.state) == (RequestState.RUNNING, RequestState.STOPPING)
