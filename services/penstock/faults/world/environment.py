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

from penstock.faults.grpc.fake_channel import Channel
from penstock.faults.grpc.fake_server import Server
from penstock.faults.grpc.network import Network
from penstock.faults.world.disk import Disk
from penstock.faults.world.engines import EngineStand, FrontEnd
from penstock.faults.world.event_loop import ProcessLoop
from penstock.faults.world.slow_readers import UNREAD
from penstock.faults.world.world import EPOCH
from penstock.worker.engine_link import EngineSupervisor

SILENCE = 5.0  # s; after which a shard ends what runs by nobody's word. A world would have to wait for a minute

# Modules that draw from what all threads of a process share.
DRAWING = (
    "penstock.chassis.streams",
    "penstock.client.answer",
    "penstock.client.client",
    "penstock.client.session",
    "penstock.worker.attachment",
)


@contextmanager
def staged(network: Network, disk: Disk, stand: EngineStand, seed: int) -> Iterator[None]:
    """Have the block's processes run on this network, disk and stand, and nothing else decide than the seed."""
    world, drawn = network.world, random.Random(f"{seed} processes")
    draw_bytes = _here(drawn.randbytes, os.urandom)

    def open_channel(address: str, **_: Any) -> Channel:
        return Channel(network, _loop(), address)

    def open_server(*, interceptors: Any = (), **_: Any) -> Server:
        return Server(network, _loop(), interceptors)

    async def start_engine(link: Any) -> tuple[FrontEnd, FrontEnd]:
        end = stand.start(link._options, link._on_message)  # noqa: SLF001  # stands for its `_start`
        return end, end

    changes: tuple[AbstractContextManager[Any], ...] = (
        patch.object(grpc.aio, "insecure_channel", open_channel),
        patch.object(grpc.aio, "server", open_server),
        patch.object(time, "time", lambda: EPOCH + world.now),
        patch.object(time, "monotonic", lambda: world.now),
        patch.object(time, "perf_counter", lambda: world.now),
        patch.object(os, "urandom", draw_bytes),
        patch.object(random, "_urandom", draw_bytes),
        *(patch(f"{module}.random", drawn) for module in DRAWING),
        patch("penstock.chassis.lifecycle._stops", {}),  # by loop; the process's own outlives every world
        patch("penstock.chassis.afterwards._by_loop", {}),  # likewise
        patch("penstock.queue.charges.REPORT_TIMEOUT_S", SILENCE),
        patch("penstock.chassis.writing.CLIENT_READ_TIMEOUT_S", UNREAD),
        # The services took their clocks as defaults, at import.
        patch.dict(_defaults("penstock.queue.__main__.QueueService"), now=lambda: EPOCH + world.now),
        patch.dict(_defaults("penstock.scheduler.__main__.SchedulerService"), now=lambda: world.now),
        patch("penstock.auth.__main__.opened_store", disk.opened),
        patch("penstock.chassis.telemetry.tracer", NoOpTracer),  # the other draws its ids from what all threads share
        # The other keeps what it is given: whole worlds.
        patch("penstock.worker.accounts.meter", lambda: NoOpMeter("faults")),
        patch("penstock.edge.door.meter", lambda: NoOpMeter("faults")),
        patch.object(EngineSupervisor, "_start", start_engine),
    )
    with ExitStack() as stack:
        stack.enter_context(_uncollected())
        for change in changes:
            stack.enter_context(change)
        yield


def _defaults(service: str) -> dict[str, Any]:
    found: dict[str, Any] = pkgutil.resolve_name(service).__init__.__kwdefaults__
    return found


def _loop() -> ProcessLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ProcessLoop), "only processes of the world open anything"
    return loop


def _here(drawn: Callable[[int], bytes], other: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """`drawn` for this thread; an exporter's that goes on beside the world takes nothing of the seed's."""
    here = threading.get_ident()

    def draw(count: int) -> bytes:
        return drawn(count) if threading.get_ident() == here else other(count)

    return draw


@contextmanager
def silent() -> Iterator[None]:
    """Nothing of the block's processes is logged; to be left only after they are gone for good."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


@contextmanager
def _uncollected() -> Iterator[None]:
    """A collection would close what nobody refers to at a moment that the seed does not decide."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
