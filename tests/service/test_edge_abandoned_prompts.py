"""A client that leaves while its long prompt is tokenized is charged for it; one that leaves before is not."""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest

from edge_calls import read_answer, wait_at_rest
from edge_mesh import TIMEOUT_S, edge_mesh
from edge_sessions import session
from penstock.edge.models import planner
from penstock.edge.text.executor import SMALL_INPUT_BYTES
from penstock.v1.inference_pb2 import Sampling

LONG_PROMPT = "x" * (SMALL_INPUT_BYTES + 1)


class Tokenizing:
    """Lets a test hold prompts while they are tokenized."""

    def __init__(self):
        self.begun = threading.Event()
        self.may_end = threading.Event()

    async def wait_begun(self):
        await asyncio.to_thread(self.begun.wait, TIMEOUT_S)


@pytest.fixture
def tokenizing(monkeypatch):
    """Long prompts are held while they are tokenized, and then fit the context: they count as 7 tokens."""
    plan_generation, held = planner.plan_generation, Tokenizing()

    def hold_and_plan(spec, model, **options):
        if len(spec.input.text) > SMALL_INPUT_BYTES:
            held.begun.set()
            held.may_end.wait(TIMEOUT_S)
            spec = planner.replace(spec, input=planner.TextInput("x" * 7))
        return plan_generation(spec, model, **options)

    monkeypatch.setattr(planner, "plan_generation", hold_and_plan)
    return held


@asynccontextmanager
async def known_caller(**settings):
    async with edge_mesh(**settings) as mesh:
        await read_answer(mesh.generate(max_output_tokens=1))
        await mesh.auth.settles.get()
        yield mesh


async def next_settle(mesh):
    async with asyncio.timeout(TIMEOUT_S):
        return await mesh.auth.settles.get()


async def test_a_call_that_ends_while_its_prompt_is_tokenized_is_charged(tokenizing):
    async with known_caller() as mesh:
        call = mesh.generate(LONG_PROMPT)
        await tokenizing.wait_begun()
        call.cancel()
        await wait_inactive(mesh)
        tokenizing.may_end.set()
        settle = await next_settle(mesh)
        assert (settle.prompt_tokens, settle.output_tokens, settle.outcome) == (7, 0, "cancelled")
        await wait_at_rest(mesh)


async def test_an_abandoned_prompt_belongs_to_the_answer_that_its_client_has_named(tokenizing):
    async with known_caller() as mesh:
        named = {"answer_id": "a-1", "sampling": Sampling(seed=7)}
        call = mesh.generate(LONG_PROMPT, **named)
        await tokenizing.wait_begun()
        call.cancel()
        await wait_inactive(mesh)
        tokenizing.may_end.set()
        await next_settle(mesh)
        await read_answer(mesh.generate(LONG_PROMPT, max_output_tokens=1, **named))
        abandoned, repeated = mesh.auth.reserves[-2:]
        assert abandoned.answer_id == repeated.answer_id == "a-1"
        assert abandoned.answer_fingerprint == repeated.answer_fingerprint != b""
        await wait_at_rest(mesh)


async def wait_inactive(mesh):
    while (await mesh.figures())["active_requests"]:
        pass


async def test_a_cancelled_request_of_a_session_is_charged(tokenizing):
    async with known_caller() as mesh, session(mesh) as client:
        client.generate(1, LONG_PROMPT)
        await tokenizing.wait_begun()
        client.cancel(1)
        await client.next_frame("cancelled")
        tokenizing.may_end.set()
        assert (await next_settle(mesh)).prompt_tokens == 7


async def test_a_prompt_whose_deadline_passes_while_it_is_tokenized_is_charged(tokenizing):
    async with known_caller(default_timeout=0.2) as mesh, session(mesh) as client:
        client.generate(1, LONG_PROMPT)
        assert (await client.next_frame("failed")).failure.reason == "DEADLINE"
        tokenizing.may_end.set()
        assert (await next_settle(mesh)).prompt_tokens == 7


async def test_a_prompt_that_waits_for_a_thread_is_neither_tokenized_nor_charged(tokenizing):
    async with known_caller(tokenizer_threads=1) as mesh:
        first, second = mesh.generate(LONG_PROMPT, max_output_tokens=1), mesh.generate(LONG_PROMPT)
        await tokenizing.wait_begun()
        await wait_active(mesh, 2)
        second.cancel()
        await wait_active(mesh, 1)
        tokenizing.may_end.set()
        await read_answer(first)
        assert (await next_settle(mesh)).outcome == "length"
        await wait_at_rest(mesh)
        assert mesh.auth.settles.empty()


async def wait_active(mesh, count):
    while (await mesh.figures())["active_requests"] != count:
        pass


async def test_a_short_prompt_that_is_cancelled_early_is_not_charged():
    async with known_caller() as mesh:
        mesh.queue.holds_tickets = True
        call = mesh.generate()
        await mesh.queue.held_tickets.get()
        call.cancel()
        assert (await next_settle(mesh)).prompt_tokens == 0
