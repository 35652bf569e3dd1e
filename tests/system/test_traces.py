"""One request is one trace over all tiers, read back from a real OTLP/gRPC receiver."""

import asyncio

import grpc
import pytest

from mesh import greedy, read_answer, running_mesh, stub_client
from otlp_receiver import otlp_receiver

CLIENT_TRACE, CLIENT_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
STAGES = ("edge.tokenize", "edge.admission", "queue.wait", "scheduler.place", "worker.prefill", "worker.decode")
SERVICES = {
    "edge": "penstock-edge",
    "queue": "penstock-queue",
    "scheduler": "penstock-scheduler",
    "worker": "penstock-worker",
}
CLOCK_SLACK_NS = 5_000_000  # stages are stamped by the clocks of several processes
PROMPT, TOKENS = "a prompt of some words", 12


async def test_every_stage_of_a_request_is_a_span_of_its_callers_trace(tiny_model):
    with otlp_receiver() as receiver:
        async with (
            running_mesh(engine="sim", model=tiny_model, otlp=receiver.endpoint) as mesh,
            stub_client(mesh) as client,
        ):
            client.metadata += (("traceparent", f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-01"),)
            await read_answer(client.generate(**greedy(PROMPT, TOKENS)))
            too_long = greedy("word " * 2_000, 1)
            with pytest.raises(grpc.aio.AioRpcError):
                await read_answer(client.generate(**{**too_long, "traceparent": f"00-{'7' * 32}-{CLIENT_SPAN}-01"}))
        # The mesh has drained, so all that it recorded is exported.
        spans = await asyncio.to_thread(receiver.wait_for_spans, "edge.generate", *STAGES, trace_id=CLIENT_TRACE)
        rejected = await asyncio.to_thread(receiver.wait_for_spans, "edge.generate", trace_id="7" * 32)

    by_name = {span.name: span for span in spans}
    root = by_name["edge.generate"]
    assert CLIENT_SPAN in (root.parent_id, by_name.get(rpc_of(spans, root), root).parent_id)
    for name in STAGES:
        stage = by_name[name]
        assert stage.parent_id == root.span_id, name
        assert stage.service == SERVICES[name.split(".")[0]]
        assert root.start_unix_nano - CLOCK_SLACK_NS <= stage.start_unix_nano
        assert stage.start_unix_nano <= stage.end_unix_nano <= root.end_unix_nano + CLOCK_SLACK_NS
    assert root.attributes["gen_ai.usage.output_tokens"] == TOKENS
    assert root.attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert (
        root.attributes["gen_ai.usage.input_tokens"]
        == by_name["worker.prefill"].attributes["gen_ai.usage.input_tokens"]
    )
    assert by_name["worker.decode"].attributes["gen_ai.usage.output_tokens"] == TOKENS
    assert not any(PROMPT in str(value) for span in spans for value in span.attributes.values())

    failed = next(span for span in rejected if span.name == "edge.generate")
    assert failed.attributes["penstock.reason"] == "PROMPT_TOO_LONG"
    assert failed.status != "ERROR"  # an error of the caller is not an error of the service


def rpc_of(spans, root):
    """Name of the parent span of `root`, if the call has one."""
    return next((span.name for span in spans if span.span_id == root.parent_id), root.name)
