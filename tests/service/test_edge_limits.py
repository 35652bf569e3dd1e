"""Rejections of a real edge: keys, sizes, fields, a full queue, a full edge."""

import threading
from datetime import timedelta
from unittest.mock import Mock

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2

from edge_calls import read_answer, rejected_call, wait_at_rest
from edge_mesh import CONTEXT, KEY, TIMEOUT_S, edge_mesh, token_at
from edge_sessions import session
from penstock.auth.config import AuthConfig
from penstock.chassis.errors import Overloaded, error_from_rpc
from penstock.edge.config import EdgeConfig
from penstock.edge.gateway import Gateway
from penstock.edge.request import limits
from penstock.edge.text.executor import SMALL_INPUT_BYTES, TokenizerPools
from penstock.mesh.limits import bounds
from penstock.scheduler.reports.lease_progress import MAX_FIRST_TOKEN_S
from penstock.v1.inference_pb2 import (
    Chat,
    CountTokensRequest,
    GenerateRequest,
    ListModelsRequest,
    Message,
    Resume,
    Sampling,
)


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer bad"),)])
async def test_an_unknown_key_is_rejected_by_every_method(metadata):
    async with edge_mesh() as mesh:
        error = await rejected_call(mesh.generate(metadata=metadata))
        assert (error.code, error.reason) == (grpc.StatusCode.UNAUTHENTICATED, "KEY_UNKNOWN")
        for call in (
            mesh.inference.ListModels(ListModelsRequest(), metadata=metadata),
            mesh.inference.CountTokens(CountTokensRequest(text="hi"), metadata=metadata),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await call
            assert failure.value.code() == grpc.StatusCode.UNAUTHENTICATED
        await wait_at_rest(mesh)


async def test_a_long_prompt_is_not_tokenized_for_an_unknown_caller():
    async with edge_mesh() as mesh:
        long = "far more than the context holds " * 4_000
        stranger = await rejected_call(mesh.generate(long, metadata=(("authorization", "Bearer bad"),)))
        assert stranger.reason == "KEY_UNKNOWN"
        assert (await rejected_call(mesh.generate(long))).reason == "PROMPT_TOO_LONG"
        await wait_at_rest(mesh)


async def test_a_shed_ticket_becomes_a_status_with_the_time_to_retry():
    async with edge_mesh() as mesh:
        mesh.queue.sheds.append(Overloaded("full", reason="QUEUE_FULL", retry_after=1.5))
        error = await rejected_call(mesh.generate())
        assert (error.code, error.reason, error.retry_after) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "QUEUE_FULL",
            1.5,
        )
        settle = await mesh.auth.settles.get()
        assert (settle.prompt_tokens, settle.output_tokens, settle.outcome) == (0, 0, "shed")


async def test_a_prompt_over_the_context_is_rejected_with_the_numbers():
    async with edge_mesh() as mesh:
        error = await rejected_call(mesh.generate("x" * 600))
        assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "PROMPT_TOO_LONG")
        assert (error.metadata["prompt_tokens"], error.metadata["context_length"]) == ("600", str(CONTEXT))
        error = await rejected_call(mesh.generate("x" * 500, max_output_tokens=13))
        assert error.field_violations[0].field == "max_output_tokens"
        assert not mesh.auth.reserves


async def test_invalid_fields_are_named_by_their_path_in_the_api():
    async with edge_mesh() as mesh:
        error = await rejected_call(mesh.generate(sampling=Sampling(temperature=9.0), stop=[""]))
        assert {violation.field for violation in error.field_violations} == {"sampling.temperature", "stop"}
        assert (await rejected_call(mesh.generate(text=None))).reason == "INPUT_MISSING"
        assert (await rejected_call(mesh.generate(model="other"))).reason == "MODEL_UNKNOWN"


async def test_the_deadline_ends_a_waiting_request():
    async with edge_mesh() as mesh:
        mesh.queue.holds_tickets = True
        error = await rejected_call(mesh.generate(timeout=timedelta(seconds=0.2)))
        assert (error.code, error.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE")
        assert await mesh.queue.withdrawn.get()
        assert 0 < mesh.queue.tickets[0].time_left_nanos < 2e8


def allowed_s(ticket):
    return ticket.time_left_nanos / 1e9


@pytest.mark.parametrize("call_deadline", [None, 2 * limits.TIMEOUT_S])
@pytest.mark.parametrize("timeout_s", [7_200.0, limits.TIMEOUT_S])
async def test_a_timeout_of_up_to_a_day_is_not_shortened(timeout_s, call_deadline):
    async with edge_mesh() as mesh:
        request = GenerateRequest(text="hi", max_output_tokens=1, timeout=timedelta(seconds=timeout_s))
        await read_answer(mesh.inference.Generate(request, metadata=KEY, timeout=call_deadline))
        assert allowed_s(mesh.queue.tickets[0]) == pytest.approx(timeout_s, abs=10)


@pytest.mark.parametrize("timeout_s", [7_200.0, limits.TIMEOUT_S])
async def test_a_timeout_in_a_session_is_not_shortened(timeout_s):
    async with edge_mesh() as mesh, session(mesh) as client:
        client.generate(1, max_output_tokens=1, timeout=timedelta(seconds=timeout_s))
        await client.next_frame("finished")
        assert allowed_s(mesh.queue.tickets[0]) == pytest.approx(timeout_s, abs=10)


@pytest.mark.parametrize("seconds", [limits.TIMEOUT_S + 1, 315_576_000_000])
async def test_a_timeout_above_a_day_is_rejected_with_the_limit(seconds):
    too_long = Duration(seconds=int(seconds))
    async with edge_mesh() as mesh, session(mesh) as client:
        error = await rejected_call(mesh.generate(timeout=too_long))
        assert (error.code, [each.field for each in error.field_violations]) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            ["timeout"],
        )
        assert str(limits.TIMEOUT_S) in error.message
        client.generate(1, timeout=too_long)
        failure = (await client.next_frame("failed")).failure
        assert (failure.code, failure.field_violations[0].field) == (code_pb2.INVALID_ARGUMENT, "timeout")
        assert not mesh.queue.tickets


async def test_the_deadline_of_a_call_alone_counts_up_to_a_day():
    async with edge_mesh() as mesh:
        for deadline in (7_200.0, 10 * limits.TIMEOUT_S):
            request = GenerateRequest(text="hi", max_output_tokens=1)
            await read_answer(mesh.inference.Generate(request, metadata=KEY, timeout=deadline))
        assert [allowed_s(each) for each in mesh.queue.tickets] == [
            pytest.approx(7_200.0, abs=TIMEOUT_S),
            pytest.approx(limits.TIMEOUT_S, abs=TIMEOUT_S),
        ]


def test_a_reservation_outlives_the_longest_request():
    assert AuthConfig().reservation_ttl > limits.TIMEOUT_S


def test_frames_between_tiers_carry_the_longest_request():
    assert bounds.REQUEST_NANOS > limits.TIMEOUT_S * 1e9
    assert MAX_FIRST_TOKEN_S >= limits.TIMEOUT_S


def test_the_default_timeout_is_within_the_contract():
    with pytest.raises(ValueError, match="default_timeout"):
        EdgeConfig(default_timeout=limits.TIMEOUT_S + 1)


async def test_a_full_edge_rejects_at_once_with_the_time_to_retry():
    async with edge_mesh(max_active_requests=1) as mesh:
        mesh.queue.holds_tickets = True
        first = mesh.generate()
        await mesh.queue.held_tickets.get()
        error = await rejected_call(mesh.generate())
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "EDGE_FULL")
        assert error.retry_after > 0
        first.cancel()


async def test_all_bytes_of_a_request_count_as_held():
    async with edge_mesh(max_held_bytes=4_000) as mesh:
        for much in (
            {"text": "x" * 4_001},
            {"text": "x", "resume": Resume(token_ids=[token_at(0)] * 200)},
            {"text": None, "chat": Chat(messages=[Message(role="r" * 60, content="")] * 70)},
        ):
            assert (await rejected_call(mesh.generate(**much))).reason == "EDGE_FULL"
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await mesh.inference.CountTokens(CountTokensRequest(text="x" * 4_001), metadata=KEY)
        assert error_from_rpc(failure.value).reason == "EDGE_FULL"
        assert (await mesh.inference.CountTokens(CountTokensRequest(text="x" * 400), metadata=KEY)).prompt_tokens == 400
        assert (await wait_at_rest(mesh))["held_bytes"] == 0


async def test_a_long_body_is_parsed_off_the_loop_and_a_short_one_at_once():
    with TokenizerPools(1) as threads:
        gateway = Gateway(EdgeConfig(), Mock(), Mock(), Mock(), threads)
        assert await gateway.parse(SMALL_INPUT_BYTES, threading.get_ident) == threading.get_ident()
        assert await gateway.parse(SMALL_INPUT_BYTES + 1, threading.get_ident) != threading.get_ident()


async def test_a_message_above_the_size_limit_is_rejected_before_it_is_parsed():
    async with edge_mesh() as mesh:
        error = await rejected_call(mesh.generate("x" * limits.BODY_BYTES))
        assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(limits.BODY_BYTES) in error.message
