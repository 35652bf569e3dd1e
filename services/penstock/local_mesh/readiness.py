"""Waits until processes of a mesh serve, and until a proxy forwards calls to them."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.chassis.channels import channel
from penstock.v1.inference_pb2 import ListModelsRequest
from penstock.v1.inference_pb2_grpc import InferenceStub

POLL_INTERVAL_S = 0.1  # s


async def wait_serving(address: str) -> None:
    """Wait until the health of the process at `address` is SERVING. It does not detect that the process exits."""
    async with channel(address) as open_channel:
        stub = health_pb2_grpc.HealthStub(open_channel)
        while not await _is_serving(stub):  # noqa: ASYNC110  # the event happens in another process
            await asyncio.sleep(POLL_INTERVAL_S)


async def _is_serving(stub: health_pb2_grpc.HealthStub) -> bool:
    """Whether the health stream reports SERVING before it ends."""
    watch = stub.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
    with suppress(grpc.aio.AioRpcError):
        async for response in watch:
            if response.status == health_pb2.HealthCheckResponse.SERVING:
                watch.cancel()
                return True
    return False


async def wait_listening(address: str) -> None:
    host, _, port = address.rpartition(":")
    while True:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except ConnectionRefusedError:
            await asyncio.sleep(POLL_INTERVAL_S)
        else:
            writer.close()
            return


async def wait_grpc_through_proxy(proxy: str, metadata: Sequence[tuple[str, str]]) -> None:
    """Wait until the proxy has a healthy edge and forwards gRPC."""
    async with channel(proxy) as to_proxy:
        stub = InferenceStub(to_proxy)
        while True:
            try:
                await stub.ListModels(ListModelsRequest(), metadata=metadata, wait_for_ready=True)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(POLL_INTERVAL_S)
            else:
                return


async def wait_http_through_proxy(proxy: str) -> None:
    """Wait until the proxy forwards HTTP, whose port is a cluster of its own in Envoy."""
    async with httpx.AsyncClient(base_url=f"http://{proxy}") as client:
        while True:
            response = await client.get("/health")
            if response.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
                return
            await asyncio.sleep(POLL_INTERVAL_S)
