"""Fourteen causes are planted in one mesh behind its proxy, and each is named; the parts of each request add up."""

import asyncio
import json
import signal
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest

from command import run_models, run_penstock
from mesh import TIMEOUT_S, LocalMesh, kill_busy_worker, running_mesh, wait_at_rest, wait_for_figures
from penstock.local_mesh.operator_channels import operator_channel
from penstock.v1.admin_pb2 import CreateKeyRequest, ExplainRequest, PutTenantRequest, Tenant
from penstock.v1.admin_pb2_grpc import AdminStub

SETTINGS = (
    "PENSTOCK_WORKER_SIM_BASE_S=0.01",
    "PENSTOCK_WORKER_SIM_PER_PREFILL_TOKEN_S=0.002",
    "PENSTOCK_WORKER_SLOTS=1",
    "PENSTOCK_QUEUE_MAX_DEPTH=2",
    "PENSTOCK_SCHEDULER_LOOK_AHEAD=0",
)
LONG = 80  # tokens; 0.8 s
MAX_ERROR = 0.02  # of the parts against the time that the client measured, and
MAX_ERROR_S = 0.05  # beside it, for the way back to the client, which no part has


@dataclass
class PlantedCauses:
    """A mesh, and the time that the client of each request measured."""

    mesh: LocalMesh
    http: httpx.AsyncClient
    keys: dict[str, str]
    took: dict[str, float]

    async def send(self, name, tokens=4, *, tenant="default", timeout=20.0, leaves_after=0, content=None, **body):
        """Send one request, whose id is `name`, and return its status. `leaves_after`: of tokens."""
        headers = {
            "authorization": f"Bearer {self.keys[tenant]}",
            "x-request-id": name,
            "x-request-timeout-ms": str(round(1e3 * timeout)),
            "content-type": "application/json",
        }
        asked = {"prompt": "a prompt", "max_tokens": tokens, "stream": True, "ignore_eos": True, **body}
        began, seen = time.monotonic(), 0
        content = content(asked) if content else json.dumps(asked)
        async with self.http.stream("POST", "/completions", content=content, headers=headers) as response:
            async for line in response.aiter_lines():
                seen += line.startswith("data: {")
                if leaves_after and seen >= leaves_after:
                    break
        self.took[name] = time.monotonic() - began
        return response.status_code

    async def cause(self, name):
        """Return the cause that the edge names, once its parts are checked."""
        edge = self.mesh.plan.processes_of("edge")[0].admin_address
        async with operator_channel(edge) as to_edge:
            found = (await AdminStub(to_edge).Explain(ExplainRequest(id=name), timeout=TIMEOUT_S)).request
        assert found.request_id == name
        total = found.total.ToMicroseconds() / 1e6
        assert sum(each.length.ToNanoseconds() for each in found.stages) == found.total.ToNanoseconds()
        if found.stages:  # else it was refused at once
            assert found.stages[0].tier == "envoy"
            assert abs(self.took[name] - total) <= MAX_ERROR * total + MAX_ERROR_S, found
        return found.cause


@asynccontextmanager
async def causes(model):
    async with running_mesh(engine="sim", model=model, envoy=True, workers=2, settings=SETTINGS) as mesh:
        keys = {"default": mesh.api_key}
        async with operator_channel(mesh.plan.processes_of("auth")[0].admin_address) as to_auth:
            admin = AdminStub(to_auth)
            for tenant in (Tenant(tenant_id="poor", tokens_per_minute=30), Tenant(tenant_id="globex")):
                await admin.PutTenant(PutTenantRequest(tenant=tenant))
                created = await admin.CreateKey(CreateKeyRequest(tenant_id=tenant.tenant_id))
                keys[tenant.tenant_id] = created.secret
        async with httpx.AsyncClient(base_url=f"http://{mesh.plan.proxy}/v1", timeout=30.0) as http:
            yield PlantedCauses(mesh, http, keys, {})


async def busy(planted, group, count):
    """Let the tenant globex run or wait with `count` long requests."""
    for number in range(count):
        group.create_task(planted.send(f"busy-{time.monotonic()}-{number}", LONG, tenant="globex"))
        await asyncio.sleep(0.05)


async def slowly(asked):
    text = json.dumps(asked).encode()
    yield text[:10]
    await asyncio.sleep(0.5)
    yield text[10:]


async def plant_alone(planted):
    """Plant causes of requests that are alone; return a part of each cause by request."""
    await planted.send("warm")
    await planted.send("warm-poor", tenant="poor")
    await planted.send("decode", LONG)
    await planted.send("prefill", 2, prompt="a long prompt " * 8)
    await planted.send("upload", content=slowly)
    await planted.send("quota", 100, tenant="poor")
    await planted.send("unknown", model="nobody")
    await planted.send("late", LONG, timeout=0.3)
    await planted.send("left", LONG, leaves_after=20)
    await wait_at_rest(planted.mesh)
    return {
        "decode": "Its answer of 80 tokens took",
        "prefill": "tokens took",
        "upload": "Its body and its caller's identity took",
        "quota": "Tenant poor is over a limit or a budget (QUOTA_EXCEEDED)",
        "unknown": "(MODEL_UNKNOWN)",
        "late": "Its deadline passed after",
        "left": "Its client cancelled it after",
    }


async def plant_queued(planted):
    """Plant causes in a queue that another tenant fills."""
    async with asyncio.TaskGroup() as group:
        await busy(planted, group, 3)
        await planted.send("waits", tenant="globex")
    async with asyncio.TaskGroup() as group:
        await busy(planted, group, 3)
        await planted.send("late-in-queue", timeout=0.3)
    async with asyncio.TaskGroup() as group:
        await busy(planted, group, 4)
        assert await planted.send("shed") == 503
        assert await planted.send("shed-at-edge") == 503
    return {
        "waits": "behind 1 request, while its own tenant had 1 waiting; its class had 2 of 2 slots",
        "late-in-queue": "deadline",  # rejected for it at once, if the wait is predicted, or at its end
        "shed": "rejected it: the queue of its model is full (QUEUE_FULL)",
        "shed-at-edge": "The edge rejected it: the queue of its model is full (QUEUE_FULL)",
    }


async def plant_faults(planted):
    """Plant causes in a mesh whose auth stops for a while and whose workers die."""
    mesh = planted.mesh
    [auth] = [each.process for each in mesh.processes.children if each.spec.tier == "auth"]
    auth.send_signal(signal.SIGSTOP)
    asyncio.get_running_loop().call_later(0.8, auth.send_signal, signal.SIGCONT)
    await planted.send("auth")

    await wait_at_rest(mesh)
    lost = asyncio.create_task(planted.send("lost", LONG))
    await kill_busy_worker(mesh)
    await lost

    [model] = (await planted.http.get("/models", headers=bearer(mesh.api_key))).json()["data"]
    await run_models(mesh, "declare", model["id"], "--load-time", "5")
    [last] = [each for each in mesh.processes.children if each.spec.tier == "worker" and each.is_alive]
    last.process.kill()
    await last.process.wait()
    [scheduler] = mesh.plan.processes_of("scheduler")
    await wait_for_figures(scheduler.admin_address, lambda figures: figures["workers"] == 0)
    held = asyncio.create_task(planted.send("held", model=model["id"]))
    await asyncio.sleep(1.0)  # the time for which it is held at the least
    await mesh.restart(last.spec.name)
    await held
    return {"auth": "Auth took", "lost": "It lost a run of", "held": "It was held"}


@pytest.mark.alone
async def test_each_planted_cause_is_named_and_the_parts_add_up(tiny_model):
    async with causes(tiny_model) as planted:
        named = {**await plant_alone(planted), **await plant_queued(planted), **await plant_faults(planted)}
        await wait_at_rest(planted.mesh)
        found = {name: await planted.cause(name) for name in named}
        assert {name: cause for name, cause in found.items() if named[name] not in cause} == {}
        assert len(found) == 14
        [edge] = planted.mesh.plan.processes_of("edge")
        code, out, _ = await run_penstock("explain", "waits", "--target", edge.admin_address)
        assert code == 0
        assert out.startswith(found["waits"])
        code, _, err = await run_penstock("explain", "nobody", "--target", edge.admin_address)
        assert (code, "NOT_FOUND / REQUEST_UNKNOWN: no edge of 1 remembers a request 'nobody'" in err) == (1, True)


def bearer(key):
    return {"authorization": f"Bearer {key}"}
