"""A whole mesh with the certificates of `penstock up`: every RPC of every process, called by peers that must not."""

import asyncio
import json
from dataclasses import replace

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from mesh import TIMEOUT_S, greedy, read_answer, running_mesh, stub_client, wait_for_figures
from mesh_identities import OUR_RPCS, Identities, Rpc, is_refused
from penstock.certificates.authority import Authority
from penstock.chassis.security.identity import TIERS
from penstock.chassis.security.permissions import PERMISSIONS
from penstock.local_mesh.certificates import rotate_certificates
from penstock.local_mesh.operator_channels import process_channel
from penstock.local_mesh.paths import CERTIFICATES_FOLDER
from penstock.mesh.v1 import (
    admission_pb2,
    batch_pb2,
    queue_pb2,
    region_pb2,
    region_quota_pb2,
    responses_pb2,
    routing_pb2,
    scheduler_pb2,
    worker_pb2,
)
from penstock.v1.stream_pb2 import Hello

TIERS_OF_SERVICES = {
    "penstock.mesh.v1.AdmissionService": ("auth",),
    "penstock.mesh.v1.ResponseStoreService": ("auth",),
    "penstock.mesh.v1.QueueService": ("queue",),
    "penstock.mesh.v1.SchedulerService": ("scheduler",),
    "penstock.mesh.v1.WorkerService": ("worker",),
    "penstock.mesh.v1.BatchService": ("batch",),
    "penstock.mesh.v1.LineService": ("edge",),
    "penstock.mesh.v1.RegionService": ("edge",),
    "penstock.mesh.v1.RegionQuotaService": ("auth",),
    "penstock.mesh.v1.RoutingService": ("routing",),
    "penstock.v1.Batches": ("edge",),
    "penstock.v1.Inference": ("edge",),
    "envoy.service.discovery.v3.AggregatedDiscoveryService": ("routing",),
}
XDS = "envoy.service.discovery.v3.AggregatedDiscoveryService"
RPCS = [
    *(each for each in OUR_RPCS if not each.path.startswith("penstock.v1.Admin/")),  # not on these ports
    Rpc(f"{XDS}/DeltaAggregatedResources", True, True),
    Rpc(f"{XDS}/StreamAggregatedResources", True, True),
]
FIRST_FRAMES = {
    "penstock.mesh.v1.AdmissionService/Admit": admission_pb2.AdmitRequest,
    "penstock.mesh.v1.ResponseStoreService/Keep": responses_pb2.KeepRequest,
    "penstock.mesh.v1.LineService/Run": batch_pb2.RunRequest,
    "penstock.mesh.v1.RegionService/Run": region_pb2.RegionServiceRunRequest,
    "penstock.mesh.v1.RegionQuotaService/Follow": region_quota_pb2.FollowRequest,
    "penstock.mesh.v1.RoutingService/WatchRegion": routing_pb2.WatchRegionRequest,
    "penstock.mesh.v1.QueueService/Submit": queue_pb2.SubmitRequest,
    "penstock.mesh.v1.QueueService/Dispatch": queue_pb2.DispatchRequest,
    "penstock.mesh.v1.SchedulerService/Attach": scheduler_pb2.AttachRequest,
    "penstock.mesh.v1.WorkerService/Execute": worker_pb2.ExecuteRequest,
}


async def test_every_rpc_of_every_process_refuses_peers_that_are_not_its_own(tiny_model, tmp_path):
    async with running_mesh(engine="sim", model=tiny_model, envoy=True, batches=1) as mesh:
        identities = Identities(tmp_path, Authority.load(mesh.folder / CERTIFICATES_FOLDER))
        wrong = []
        for rpc, spec in targets(mesh):
            wrong += await wrongly_served(identities, rpc, spec)
        assert wrong == []
        async with stub_client(mesh, mesh.plan.proxy) as client:
            assert len((await read_answer(client.generate(**greedy("hello", 3)))).token_ids) == 3


def targets(mesh):
    """Yield each RPC with each process that serves it."""
    for rpc in RPCS:
        for tier in TIERS_OF_SERVICES[rpc.path.partition("/")[0]]:
            yield from ((rpc, spec) for spec in mesh.plan.processes_of(tier))


async def wrongly_served(identities, rpc, spec):
    address = spec.proxy_doors[0] if spec.tier == "edge" else spec.address
    caller, found = min(PERMISSIONS[rpc.path]), []
    async with identities.bad_callers(address, spec.tier, caller) as callers:
        for problem, channel in callers.items():
            if not is_refused(problem, refusal := await rpc.refusal(channel)):
                found.append((spec.name, rpc.path, problem, refusal))
    for tier in TIERS:
        if tier not in PERMISSIONS[rpc.path]:
            async with identities.channel(address, spec.tier, tier) as channel:
                if (refusal := await rpc.refusal(channel)) != ("PERMISSION_DENIED", "PEER_NOT_ALLOWED"):
                    found.append((spec.name, rpc.path, tier, refusal))
    if frame := FIRST_FRAMES.get(rpc.path):
        for tier, instance in (("operator", f"{caller}-1"), (caller, f"{caller}-2")):
            hello = frame(hello=Hello(protocol=1, tier=tier, instance_id=instance, address="127.0.0.1:1"))
            async with identities.channel(address, spec.tier, caller, f"{caller}-1") as channel:
                if (refusal := await rpc.refusal(channel, hello.SerializeToString())) != HELLO_MISMATCH:
                    found.append((spec.name, rpc.path, tier, instance, refusal))
    return found


HELLO_MISMATCH = ("PERMISSION_DENIED", "HELLO_MISMATCH")


async def test_a_worker_whose_address_presents_another_workers_certificate_gets_no_start(tiny_model):
    """Worker 1 advertises the address of worker 2, as a thief of its traffic would advertise its own."""
    async with (
        running_mesh(workers=2, engine="sim", model=tiny_model) as mesh,
        stub_client(mesh) as client,
    ):
        first, second = mesh.plan.processes_of("worker")
        # The edge has the card of the model already: it fetches it from one worker alone.
        former = mesh.processes.named(first.name)
        former.process.terminate()
        await former.process.wait()
        moved = replace(first, environment={**first.environment, "PENSTOCK_WORKER_ADVERTISE": second.address})
        await mesh.restart(first.name, spec=moved)
        # A lease of worker 1 is placed again until the deadline of its request.
        answers = [read_answer(client.generate(timeout=6.0, **greedy(f"prompt {each}", 8))) for each in range(12)]
        ended = await asyncio.gather(*answers, return_exceptions=True)
        answered = [each for each in ended if not isinstance(each, grpc.aio.AioRpcError)]
        assert {len(each.token_ids) for each in answered} <= {8}
        first, second = [
            await wait_for_figures(each.admin_address, lambda _: True) for each in mesh.plan.processes_of("worker")
        ]
        assert first["tokens_generated"] == 0
        assert second["tokens_generated"] == 8 * len(answered)
        log = [json.loads(line) for line in (mesh.folder / "edge-1.log").read_text().splitlines() if line[0] == "{"]
        [rejected] = [each for each in log if each["event"] == "link_rejected"]
        assert rejected["because"].endswith("certificate does not have the name worker-1.worker.penstock.internal")


@pytest.mark.parametrize("rotations", [3])
async def test_streams_go_on_while_every_certificate_is_replaced(tiny_model, rotations):
    settings = ("PENSTOCK_WORKER_SIM_BASE_S=0.02",)
    async with running_mesh(engine="sim", model=tiny_model, envoy=True, workers=2, settings=settings) as mesh:
        async with stub_client(mesh, mesh.plan.proxy) as client:
            reading = [
                asyncio.create_task(read_answer(client.generate(**greedy(f"p {each}", 300)))) for each in range(16)
            ]
            for number in range(rotations):
                rotate_certificates(mesh.plan, mesh.folder)
                await mesh_has_loaded(mesh, number + 1)
            assert len((await read_answer(client.generate(**greedy("another", 3)))).token_ids) == 3
            assert {len(each.token_ids) for each in await asyncio.gather(*reading)} == {300}
        logs = "".join(path.read_text() for path in mesh.folder.glob("*.log"))
        assert "link_down" not in logs
        assert "certificates_loaded" in logs


async def mesh_has_loaded(mesh, times):
    """Return once new handshakes have let each process read changed certificates for the `times`-th time."""
    async with asyncio.timeout(TIMEOUT_S):
        for spec in mesh.plan.processes:
            while spec.is_mutual and loads(mesh, spec) < times:
                async with process_channel(spec, mesh.folder) as to_process:
                    await HealthStub(to_process).Check(HealthCheckRequest(), wait_for_ready=True)
                await asyncio.sleep(0.1)  # files are looked at once a second


def loads(mesh, spec):
    return (mesh.folder / f"{spec.name}.log").read_text().count("certificates_loaded")


def test_a_key_is_readable_by_its_owner_alone(tmp_path):
    Authority.create().issue_to(tmp_path, "queue-1", "queue", "queue-1")
    assert (tmp_path / "queue-1.key").stat().st_mode & 0o077 == 0
