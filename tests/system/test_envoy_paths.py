"""Paths through the door of a real Envoy: the public API passes, every other service ends at the proxy."""

import asyncio
import json
from importlib import import_module
from pkgutil import iter_modules

import grpc
import pytest
from google.protobuf import descriptor_pool
from google.rpc import error_details_pb2
from grpc_channelz.v1 import channelz_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_status import rpc_status

import penstock.mesh.v1
import penstock.v1
from envoy_proxy import Backend, running_front
from penstock.routing.resources.routes import PUBLIC_SERVICES

# Services whose messages are not protobuf's here, or that a later release of a library may add.
FURTHER_PATHS = [
    "/check",
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
]
ESCAPES = [  # spellings that a server behind the proxy may read as another path
    "/penstock.v1.Inference/../penstock.v1.Admin/Drain",
    "/penstock.v1.Inference/%2e%2e/penstock.v1.Admin/Drain",
    "//penstock.v1.Admin/Drain",
    "/PENSTOCK.V1.INFERENCE/Generate",
    "/v1/../metrics",
    "/v1",
]


def files():
    for package in (penstock.v1, penstock.mesh.v1):
        for module in iter_modules(package.__path__):
            if module.name.endswith("_pb2"):
                yield import_module(f"{package.__name__}.{module.name}").DESCRIPTOR
    yield from (health_pb2.DESCRIPTOR, channelz_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR)


def methods():
    """Paths of the methods of all services that a process of the mesh has."""
    for file in files():
        assert descriptor_pool.Default().FindFileByName(file.name) is file
        for service in file.services_by_name.values():
            yield from (f"/{service.full_name}/{method.name}" for method in service.methods)


def is_public(path):
    return path.split("/")[1] in PUBLIC_SERVICES


INTERNAL = [path for path in methods() if not is_public(path)] + FURTHER_PATHS


@pytest.fixture
async def front(tmp_path):
    async with running_front(tmp_path, Backend("a")) as running:
        yield running


async def status_of(front, path):
    """The HTTP status and the error of a POST; its content type is not gRPC's."""
    reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
    writer.write(f"POST {path} HTTP/1.1\r\nhost: front\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next(int(line.split(": ")[1]) for line in head.splitlines() if line.startswith("content-length: "))
    body = await reader.readexactly(length)
    writer.close()  # the proxy would wait for it for a second
    return int(head.split()[1]), json.loads(body)["error"]


def test_the_services_of_the_mesh_are_known_by_their_descriptors():
    services = {path.split("/")[1] for path in methods()}
    assert {"penstock.v1.Admin", "penstock.mesh.v1.QueueService", "grpc.health.v1.Health"} < services
    assert set(PUBLIC_SERVICES) == {"penstock.v1.Inference", "penstock.v1.Batches"}


async def test_no_internal_method_reaches_an_edge_over_grpc(front):
    for path in [*INTERNAL, *ESCAPES]:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await front.calls.unary_unary(path)(b"")
        status = rpc_status.from_call(failure.value)
        info = error_details_pb2.ErrorInfo()
        status.details[0].Unpack(info)
        assert (path, failure.value.code(), info.reason) == (path, grpc.StatusCode.UNIMPLEMENTED, "PATH_UNKNOWN")
    assert front.backends[0].calls == []


async def test_no_internal_path_reaches_an_edge_over_http(front):
    for path in [*INTERNAL, *ESCAPES, "/metrics", "/", "/health/x"]:
        status, error = await status_of(front, path)
        assert (path, status, error["code"], error["type"]) == (path, 404, "path_unknown", "invalid_request_error")
    assert front.backends[0].calls == []


async def test_the_public_service_reaches_an_edge(front):
    assert await front.calls.unary_unary(f"/{PUBLIC_SERVICES[0]}/Unary")(b"") == b"a"
