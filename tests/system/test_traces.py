"""One request is one trace from the proxy to the worker, at every door and for every end, read back over OTLP/gRPC."""

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from mesh import kill_busy_worker, running_mesh, wait_at_rest, wait_for_figures
from otlp_receiver import Receiver, otlp_receiver
from penstock.local_mesh.mesh import LocalMesh
from penstock.local_mesh.operator_channels import operator_channel
from penstock.v1.admin_pb2 import CreateKeyRequest, PutTenantRequest, Tenant
from penstock.v1.admin_pb2_grpc import AdminStub
from traced_calls import DOORS, GUESS, PROXY, SERVERS, TracedCall, check_trace, is_rejected, new_trace_id, outline

pytestmark = pytest.mark.alone

SETTINGS = (
    "PENSTOCK_WORKER_SIM_BASE_S=0.01",
    "PENSTOCK_WORKER_SLOTS=1",
    "PENSTOCK_QUEUE_MAX_DEPTH=1",
    "PENSTOCK_SCHEDULER_LOOK_AHEAD=0",
)
WORKERS = 4  # of which each door kills one
TOKENS = 8
LONG = 150  # tokens; 1.5 s
LONGEST = 450  # tokens that the context of the model has room for; 4.5 s
REQUEST = "text_completion tiny"
STAGES = {
    "edge.tokenize": "penstock-edge",
    "edge.admission": "penstock-edge",
    "auth.reserve": "penstock-auth",
    "queue.wait": "penstock-queue",
    "scheduler.place": "penstock-scheduler",
    "worker.prefill": "penstock-worker",
    "worker.decode": "penstock-worker",
}


@dataclass
class TracedMesh:
    """A mesh, and the trace of each call by its door and case."""

    mesh: LocalMesh
    poor_key: str  # of a tenant with a small limit
    trace_ids: dict[tuple[str, str], str] = field(default_factory=dict)

    def call(self, door, case, key="", **fields):
        self.trace_ids[door, case] = trace_id = new_trace_id()
        return TracedCall(self.mesh, door, key or self.mesh.api_key, trace_id=trace_id, **fields)

    async def run_cases(self, door):
        assert not await is_rejected(self.call(door, "ok", tokens_wanted=TOKENS))
        assert await is_rejected(self.call(door, "quota", self.poor_key, tokens_wanted=100))
        assert await is_rejected(self.call(door, "bad key", GUESS))
        assert await is_rejected(self.call(door, "deadline", tokens_wanted=LONG, timeout=0.4))
        async with aclosing(self.call(door, "cancel", tokens_wanted=LONG).tokens()) as tokens:
            async for index in tokens:
                if index == TOKENS:
                    break
        await wait_at_rest(self.mesh)  # the worker to kill is that of the next call
        interrupted = asyncio.create_task(is_rejected(self.call(door, "lost run", tokens_wanted=LONG)))
        await kill_busy_worker(self.mesh)
        assert not await interrupted

    async def shed(self):
        """Shed one request at each door, while one runs on the last worker and one waits."""
        queue = self.mesh.plan.processes_of("queue")[0].admin_address
        async with asyncio.TaskGroup() as group:
            busy = []
            for figure in ("running", "waiting"):
                call = TracedCall(self.mesh, "grpc", self.mesh.api_key, LONGEST, trace_id=new_trace_id())
                busy.append(group.create_task(is_rejected(call)))
                await wait_for_figures(queue, lambda found, figure=figure: found[figure] >= 1)
            for door in DOORS:
                assert await is_rejected(self.call(door, "shed"))
            for each in busy:
                each.cancel()


@asynccontextmanager
async def traced_mesh(receiver, model):
    async with running_mesh(
        engine="sim", model=model, envoy=True, workers=WORKERS, otlp=receiver.endpoint, settings=SETTINGS
    ) as mesh:
        async with operator_channel(mesh.plan.processes_of("auth")[0].admin_address) as to_auth:
            admin = AdminStub(to_auth)
            await admin.PutTenant(PutTenantRequest(tenant=Tenant(tenant_id="poor", tokens_per_minute=30)))
            key = (await admin.CreateKey(CreateKeyRequest(tenant_id="poor"))).secret
        yield TracedMesh(mesh, key)


async def test_every_end_of_a_request_is_one_true_trace_at_every_door(tiny_model):
    with otlp_receiver() as receiver:
        async with traced_mesh(receiver, tiny_model) as traced:
            for door in DOORS:
                await traced.run_cases(door)
            await traced.shed()
            await wait_at_rest(traced.mesh)
        # The mesh has drained, so all that it recorded is exported, except by the killed workers.
        for (door, case), trace_id in traced.trace_ids.items():
            try:
                check_case(receiver, door, case, trace_id)
            except (AssertionError, KeyError) as error:
                error.add_note(f"{door} {case}:\n{outline(receiver.spans(trace_id=trace_id))}")
                raise


def check_case(receiver: Receiver, door: str, case: str, trace_id: str) -> None:
    spans = receiver.spans(trace_id=trace_id)
    check_trace(spans, was_stopped=case in ("cancel", "deadline"))
    by_name = {span.name: span for span in spans}
    proxy = next(span for span in spans if span.service == PROXY and span.kind == "SERVER")
    assert proxy.name == ("envoy.http" if door == "http" else "envoy.grpc")
    assert proxy.resource["service.namespace"] == "penstock"
    if case == "bad key":  # the proxy asks auth, and refuses the call itself
        assert {span.service for span in spans} == {PROXY}
        return
    assert by_name[SERVERS[door]].kind == "SERVER"
    root = by_name[REQUEST]
    assert root.kind == ("SERVER" if door == "session" else "INTERNAL")
    stages = [span for span in spans if span.parent_id == root.span_id and span.name in STAGES]
    assert all(span.service == STAGES[span.name] for span in stages)
    assert not any("a prompt" in str(value) for span in spans for value in span.attributes.values())
    CASES[case](root, by_name, spans)


def is_ok(root, by_name, spans):
    assert by_name.keys() >= STAGES.keys() - {"worker.prefill", "worker.decode"}
    assert not any(span.status == "ERROR" for span in spans)
    assert root.attributes["gen_ai.usage.output_tokens"] == TOKENS
    assert root.attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert [name for name, _, _ in root.events] == ["first_token"]


def is_over_quota(root, by_name, spans):
    assert (root.status, root.attributes["penstock.reason"]) == ("UNSET", "QUOTA_EXCEEDED")
    assert by_name["auth.reserve"].attributes["penstock.tenant_id"] == "poor"
    assert by_name["auth.reserve"].attributes["penstock.key_id"]


def is_late(root, by_name, spans):
    assert (root.status, root.attributes["penstock.reason"]) == ("ERROR", "DEADLINE")


def is_cancelled(root, by_name, spans):
    assert (root.status, root.attributes["penstock.outcome"]) == ("UNSET", "cancelled")
    assert [name for name, _, _ in root.events] == ["first_token", "cancel_acknowledged"]


def has_lost_run(root, by_name, spans):
    runs = [span for span in spans if span.name == "edge.run"]
    waits = [span for span in spans if span.name == "queue.wait"]
    assert [(run.status, run.attributes["penstock.attempt"]) for run in runs] == [("ERROR", 1), ("UNSET", 2)]
    assert runs[0].links == ((runs[1].trace_id, runs[1].span_id),)
    assert runs[1].links == ((runs[0].trace_id, runs[0].span_id),)
    assert len(waits) == 2
    assert waits[0].end_unix_nano <= runs[0].end_unix_nano <= waits[1].start_unix_nano
    assert root.attributes["gen_ai.usage.output_tokens"] == LONG


def is_shed(root, by_name, spans):
    assert (root.status, root.attributes["penstock.outcome"]) == ("ERROR", "shed")
    assert root.attributes["penstock.reason"] == "QUEUE_FULL"
    assert root.attributes["penstock.rejected_by"] in ("queue", "edge")  # the edge knows of the queue's rejections
    assert all(span.status == "ERROR" for span in spans if span.service == "penstock-edge" and span.kind == "SERVER")


CASES = {
    "ok": is_ok,
    "quota": is_over_quota,
    "deadline": is_late,
    "cancel": is_cancelled,
    "lost run": has_lost_run,
    "shed": is_shed,
}
