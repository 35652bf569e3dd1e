"""Connections to the targets of one client."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from penstock.chassis.channels import CHANNEL_OPTIONS, channel
from penstock.chassis.errors import Unavailable
from penstock.client.retries import CONNECTION_LOST
from penstock.client.target_rotation import TargetRotation
from penstock.v1.inference_pb2_grpc import InferenceStub

if TYPE_CHECKING:
    from penstock.v1.inference_pb2_grpc import InferenceAsyncStub  # exists in the type stubs only

CONNECT_TIMEOUT_S = 1.0  # for one of several targets
RETRY_PAUSE_S = 0.05  # after all targets have failed


@dataclass(frozen=True, slots=True)
class Endpoint:
    target: str
    channel: grpc.aio.Channel
    stub: "InferenceAsyncStub"


class Endpoints:
    """Channels to all targets of a client, selected in rotation. Open while the client is open."""

    def __init__(self, targets: Sequence[str], credentials: grpc.ChannelCredentials | None) -> None:
        self._targets = targets
        self._credentials = credentials
        self._rotation = TargetRotation(list(targets))
        self._endpoints: dict[str, Endpoint] = {}
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        for target in self._targets:
            opened = await self._stack.enter_async_context(self._channel(target))
            self._endpoints[target] = Endpoint(target, opened, InferenceStub(opened))

    async def close(self) -> None:
        self._endpoints.clear()
        await self._stack.aclose()

    def next(self) -> Endpoint:
        """Return the next endpoint, whether or not it is connected."""
        if not self._endpoints:
            raise RuntimeError("the client is not open; use it as `async with Client(..) as client`")
        return self._endpoints[self._rotation.next(time.monotonic())]

    def has_healthy_other(self) -> bool:
        """Return whether a target other than the last one has not failed recently."""
        return self._rotation.has_healthy(time.monotonic())

    def mark_failed(self, endpoint: Endpoint) -> None:
        self._rotation.mark_failed(endpoint.target, time.monotonic())

    async def next_connected(self, timeout: float) -> Endpoint:
        """Return the next connected endpoint. Raises Unavailable / CONNECTION_LOST after `timeout` seconds.

        A failed connection does not count as an attempt of the request, because no server has received it.
        """
        deadline, tried = time.monotonic() + timeout, 0
        while (left := deadline - time.monotonic()) > 0:
            endpoint = self.next()
            try:
                async with asyncio.timeout(left if len(self._rotation) == 1 else min(CONNECT_TIMEOUT_S, left)):
                    await _wait_ready(endpoint.channel, fail_on_refusal=len(self._rotation) > 1)
            except (TimeoutError, ConnectionRefusedError):
                self.mark_failed(endpoint)
                tried += 1
                if tried % len(self._rotation) == 0:
                    await asyncio.sleep(RETRY_PAUSE_S)
            else:
                return endpoint
        text = f"no connection to {', '.join(self._targets)} within {timeout:.1f} s; is an edge running there?"
        raise Unavailable(text, reason=CONNECTION_LOST)

    def _channel(self, target: str) -> grpc.aio.Channel:
        if self._credentials is None:
            return channel(target)
        return grpc.aio.secure_channel(target, self._credentials, options=CHANNEL_OPTIONS)


async def _wait_ready(connection: grpc.aio.Channel, *, fail_on_refusal: bool) -> None:
    """Wait until connected. With `fail_on_refusal`, raises ConnectionRefusedError at the first failure."""
    while (state := connection.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
        if fail_on_refusal and state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            raise ConnectionRefusedError
        await connection.wait_for_state_change(state)
