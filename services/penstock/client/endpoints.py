"""Connections to the targets of one client."""

import asyncio
import math
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from penstock.chassis.channels import CHANNEL_OPTIONS, channel
from penstock.chassis.errors import DeadlineExceeded, PenstockError, Unavailable, error_from_rpc
from penstock.chassis.grpc_poller import unblocked_poller
from penstock.chassis.lifecycle import background
from penstock.client.retries import CONNECTION_LOST
from penstock.client.target_rotation import REFUSAL_COOLDOWN_S, TargetRotation
from penstock.mesh.regions import REGION_NOT_ALLOWED
from penstock.v1.inference_pb2 import ListModelsRequest
from penstock.v1.inference_pb2_grpc import InferenceStub

if TYPE_CHECKING:
    from penstock.v1.inference_pb2_grpc import InferenceAsyncStub  # exists in the type stubs only

CONNECT_TIMEOUT_S = 2.0  # for one of several targets: four round trips of 0.5 s
ATTEMPT_DELAY_S = 0.25  # for one of several targets while another one is connected (RFC 8305, section 5)
RETRY_PAUSE_S = 0.05  # after all targets have failed
PROBE_TIMEOUT_S = 0.5  # of a home target that is down
PROBE_INTERVAL_S = 0.25  # after a probe; jitter takes up to half of it

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Endpoint:
    target: str
    channel: grpc.aio.Channel
    stub: "InferenceAsyncStub"
    is_failover: bool = False


class Endpoints:
    """Channels to all targets of a client, selected in rotation. Open while the client is open.

    While a home target is down and there are failover targets, the home target is probed with `ListModels`, whose call
    has `metadata`.
    """

    def __init__(
        self,
        targets: Sequence[str],
        credentials: grpc.ChannelCredentials | None,
        *,
        failover: Sequence[str] = (),
        metadata: Metadata = (),
    ) -> None:
        self._targets = targets
        self._failover = failover
        self._credentials = credentials
        self._metadata = metadata
        self._rotation = TargetRotation(targets, failover)
        self._target_down = asyncio.Event()  # a home target is down
        self._home_up = asyncio.Event()  # a home target is usable
        self._home_up.set()
        self._endpoints: dict[str, Endpoint] = {}
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        # While the application holds its loop, a blocked poller would answer no pings: all answers would lose their
        # connections to edges that live, and be computed again.
        self._stack.enter_context(unblocked_poller())
        for target in (*self._targets, *self._failover):
            opened = await self._stack.enter_async_context(self._channel(target))
            self._endpoints[target] = Endpoint(target, opened, InferenceStub(opened), target in self._failover)
        if self._failover:
            await self._stack.enter_async_context(background(self._probe_home()))

    async def close(self) -> None:
        self._endpoints.clear()
        await self._stack.aclose()

    def next(self) -> Endpoint:
        """Return the next endpoint, whether or not it is connected."""
        if not self._endpoints:
            raise RuntimeError("the client is not open; use it as `async with Client(..) as client`")
        return self._endpoints[self._rotation.next(time.monotonic())]

    def has_healthy_other(self) -> bool:
        """Return whether a target other than the last one has neither failed nor refused the caller recently."""
        return self._rotation.has_healthy(time.monotonic())

    def mark_failed(self, endpoint: Endpoint, began_at: float) -> None:
        """Record the failure of a call or stream that began at `began_at`, monotonic."""
        self._rotation.mark_failed(endpoint.target, began_at, time.monotonic())
        self._update_events()

    def can_leave(self, endpoint: Endpoint, error: PenstockError) -> bool:
        """Return whether an endpoint refuses the caller for its region, and another endpoint may accept it."""
        if error.reason != REGION_NOT_ALLOWED:
            return False
        can_leave = self._rotation.mark_refused(endpoint.target, time.monotonic())
        self._update_events()
        asyncio.get_running_loop().call_later(REFUSAL_COOLDOWN_S, self._update_events)
        return can_leave

    async def wait_home(self) -> None:
        """Wait until a home target is usable."""
        await self._home_up.wait()

    async def next_connected(self, timeout: float) -> Endpoint:
        """Return the next connected endpoint. Raises Unavailable / CONNECTION_LOST after `timeout` seconds.

        A failed connection does not count as an attempt of the request, because no server has received it.
        """
        deadline, tried = time.monotonic() + timeout, 0
        while (left := deadline - time.monotonic()) > 0:
            endpoint = self.next()
            try:
                async with asyncio.timeout(min(self._patience_s(endpoint), left)):
                    await _wait_ready(endpoint.channel, fail_on_refusal=len(self._rotation) > 1)
            except (TimeoutError, ConnectionRefusedError):
                self._rotation.mark_unreachable(endpoint.target, time.monotonic())
                self._update_events()
                tried += 1
                if tried % len(self._rotation) == 0:
                    await asyncio.sleep(RETRY_PAUSE_S)
            else:
                return endpoint
        targets = ", ".join((*self._targets, *self._failover))
        text = f"no connection to {targets} within {timeout:.1f} s; is an edge running there?"
        raise Unavailable(text, reason=CONNECTION_LOST)

    def _patience_s(self, endpoint: Endpoint) -> float:
        """Return how long to wait for a connection, which goes on in the background after that."""
        if len(self._rotation) == 1:
            return math.inf
        others = (each for each in self._endpoints.values() if each is not endpoint)
        is_replaceable = not _is_ready(endpoint) and any(
            each.is_failover is endpoint.is_failover
            and _is_ready(each)
            and self._rotation.is_healthy(each.target, time.monotonic())
            for each in others
        )
        return ATTEMPT_DELAY_S if is_replaceable else CONNECT_TIMEOUT_S

    async def _probe_home(self) -> None:
        while True:
            await self._target_down.wait()
            await asyncio.gather(*map(self._probe, self._rotation.down))
            await asyncio.sleep(PROBE_INTERVAL_S * random.uniform(0.5, 1.0))  # noqa: S311  # jitter, not security

    async def _probe(self, target: str) -> None:
        """Mark a home target as up if it serves a model, or rejects the call for a reason of its own."""
        call = self._endpoints[target].stub.ListModels(
            ListModelsRequest(), metadata=self._metadata, timeout=PROBE_TIMEOUT_S, wait_for_ready=True
        )
        try:
            is_up = bool((await call).models)
        except grpc.aio.AioRpcError as error:
            is_up = not isinstance(error_from_rpc(error), Unavailable | DeadlineExceeded)
        if is_up:
            self._rotation.mark_up(target)
            self._update_events()

    def _update_events(self) -> None:
        _set_if(self._target_down, bool(self._rotation.down))
        _set_if(self._home_up, self._rotation.is_home_usable(time.monotonic()))

    def _channel(self, target: str) -> grpc.aio.Channel:
        if self._credentials is None:
            return channel(target)
        return grpc.aio.secure_channel(target, self._credentials, options=CHANNEL_OPTIONS)


def _set_if(event: asyncio.Event, is_so: bool) -> None:
    if is_so:
        event.set()
    else:
        event.clear()


def _is_ready(endpoint: Endpoint) -> bool:
    return endpoint.channel.get_state() is grpc.ChannelConnectivity.READY


async def _wait_ready(connection: grpc.aio.Channel, *, fail_on_refusal: bool) -> None:
    """Wait until connected. With `fail_on_refusal`, raises ConnectionRefusedError at the first failure."""
    while (state := connection.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
        if fail_on_refusal and state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            raise ConnectionRefusedError
        await connection.wait_for_state_change(state)
