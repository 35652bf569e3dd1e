"""What the tiers' processes take for the world: clocks, randomness, channels, servers, disk and engines from here."""

import asyncio
import gc
import logging
import os
import pkgutil
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import grpc
import structlog
from opentelemetry.metrics import NoOpMeter
from opentelemetry.trace import NoOpTracer

from penstock.faults.grpc.fake_channel import FakeChannel
from penstock.faults.grpc.fake_server import FakeServer
from penstock.faults.grpc.network import Network
from penstock.faults.world.disk import Disk
from penstock.faults.world.engines import EnginePool, FakeEngineHost
from penstock.faults.world.event_loop import ProcessLoop
from penstock.faults.world.slow_readers import CLIENT_READ_TIMEOUT_S
from penstock.faults.world.world import EPOCH_UNIX_S
from penstock.worker.engine_host.supervisor import EngineSupervisor

UNREPORTED_RUN_TIMEOUT_S = (
    5.0  # s; after which a shard ends what runs by nobody's word. A world would have to wait for a minute
)

# Modules that draw from what all threads of a process share.
MODULES_WITH_RANDOM = (
    "penstock.chassis.streams.link",
    "penstock.client.response",
    "penstock.client.client",
    "penstock.client.session",
    "penstock.worker.scheduler_session.client",
)


@contextmanager
def patched_environment(network: Network, disk: Disk, engine_pool: EnginePool, seed: int) -> Iterator[None]:
    """Have the block's processes run on this network, disk and stand, and nothing else decide than the seed."""
    world, drawn = network.world, random.Random(f"{seed} processes")
    draw_bytes = _for_this_thread(drawn.randbytes, os.urandom)

    def open_channel(address: str, **_: Any) -> FakeChannel:
        return FakeChannel(network, _running_process_loop(), address)

    def open_server(*, interceptors: Any = (), **_: Any) -> FakeServer:
        return FakeServer(network, _running_process_loop(), interceptors)

    async def start_engine(link: Any) -> tuple[FakeEngineHost, FakeEngineHost]:
        end = engine_pool.start(link._options, link._on_message)  # noqa: SLF001  # stands for its `_start`
        return end, end

    changes: tuple[AbstractContextManager[Any], ...] = (
        patch.object(grpc.aio, "insecure_channel", open_channel),
        patch.object(grpc.aio, "server", open_server),
        patch.object(time, "time", lambda: EPOCH_UNIX_S + world.now),
        patch.object(time, "monotonic", lambda: world.now),
        patch.object(time, "perf_counter", lambda: world.now),
        patch.object(os, "urandom", draw_bytes),
        patch.object(random, "_urandom", draw_bytes),
        *(patch(f"{module}.random", drawn) for module in MODULES_WITH_RANDOM),
        patch("penstock.chassis.lifecycle._stops", {}),  # by loop; the process's own outlives every world
        patch("penstock.chassis.observability.deferred._by_loop", {}),  # likewise
        patch("penstock.queue.accounting.REPORT_TIMEOUT_S", UNREPORTED_RUN_TIMEOUT_S),
        patch("penstock.chassis.server.write_timeout.CLIENT_READ_TIMEOUT_S", CLIENT_READ_TIMEOUT_S),
        # The services took their clocks as defaults, at import.
        patch.dict(_keyword_defaults("penstock.queue.__main__.QueueService"), now=lambda: EPOCH_UNIX_S + world.now),
        patch.dict(_keyword_defaults("penstock.scheduler.__main__.SchedulerService"), now=lambda: world.now),
        patch("penstock.auth.__main__.opened_store", disk.open_store),
        patch(
            "penstock.chassis.observability.telemetry.tracer", NoOpTracer
        ),  # the other draws its ids from what all threads share
        # The other keeps what it is given: whole worlds.
        patch("penstock.worker.telemetry.meter", lambda: NoOpMeter("faults")),
        patch("penstock.edge.admission.filter.meter", lambda: NoOpMeter("faults")),
        patch.object(EngineSupervisor, "_start", start_engine),
    )
    with ExitStack() as stack:
        stack.enter_context(_gc_disabled())
        for change in changes:
            stack.enter_context(change)
        yield


def _keyword_defaults(service: str) -> dict[str, Any]:
    found: dict[str, Any] = pkgutil.resolve_name(service).__init__.__kwdefaults__
    return found


def _running_process_loop() -> ProcessLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ProcessLoop), "only processes of the world open anything"
    return loop


def _for_this_thread(seeded: Callable[[int], bytes], original: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """`drawn` for this thread; an exporter's that goes on beside the world takes nothing of the seed's."""
    here = threading.get_ident()

    def draw(count: int) -> bytes:
        return seeded(count) if threading.get_ident() == here else original(count)

    return draw


@contextmanager
def logs_silenced() -> Iterator[None]:
    """Nothing of the block's processes is logged; to be left only after they are gone for good."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


@contextmanager
def _gc_disabled() -> Iterator[None]:
    """A collection would close what nobody refers to at a moment that the seed does not decide."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
