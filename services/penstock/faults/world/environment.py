"""Patches of a world's processes: clocks, randomness, channels, servers, disk and engines are replaced here."""

import asyncio
import gc
import logging
import os
import pkgutil
import random
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext
from typing import Any, NamedTuple
from unittest.mock import patch

import grpc
import structlog

from penstock.chassis.ids import RandomSource
from penstock.faults.grpc.fake_channel import FakeChannel
from penstock.faults.grpc.fake_server import FakeServer
from penstock.faults.grpc.network import Network
from penstock.faults.regions.disks import RegionDisks
from penstock.faults.world.clients.slow_readers import CLIENT_READ_TIMEOUT_S
from penstock.faults.world.engines import EnginePool, FakeEngineHost
from penstock.faults.world.event_loop import ProcessLoop
from penstock.faults.world.http_door import http_opener
from penstock.faults.world.stores.batch_disk import BatchDisk
from penstock.faults.world.stores.disk import Disk
from penstock.faults.world.stores.replica_store import store_opener
from penstock.faults.world.stores.response_disk import ResponseDisk
from penstock.faults.world.stores.shared_database import SharedDatabase
from penstock.worker.engine_host.supervisor import EngineSupervisor

# A shard ends a run without reports after this time in s. The shipped value, a minute, would slow down every world.
UNREPORTED_RUN_TIMEOUT_S = 5.0

LINES_PER_CHUNK = 3  # of the batch tier, instead of hundreds
JOB_LEASE_S = 9.0  # s, instead of 30: a file of a world is divided within milliseconds

# Modules that use the `random` module, whose state all threads of a process share.
MODULES_WITH_RANDOM = (
    "penstock.auth.regions.spending.follower",
    "penstock.chassis.streams.link",
    "penstock.client.response",
    "penstock.client.client",
    "penstock.client.endpoints",
    "penstock.client.session",
    "penstock.edge.stored.takeover",
    "penstock.worker.scheduler_session.client",
)


class Disks(NamedTuple):
    """All stores of a world."""

    auth: Disk | RegionDisks
    responses: ResponseDisk
    batches: BatchDisk


@contextmanager
def patched_environment(network: Network, disks: Disks, engine_pool: EnginePool, seed: int) -> Iterator[None]:
    """Run the processes of the block on this network, these disks and engines, with all randomness from `seed`."""
    disk, responses, batches = disks
    world, rng = network.world, random.Random(f"{seed} processes")
    random_bytes = _for_this_thread(rng.randbytes, os.urandom)

    def open_channel(address: str, **_: Any) -> FakeChannel:
        return FakeChannel(network, _running_process_loop(), address)

    def open_server(*, interceptors: Any = (), **_: Any) -> FakeServer:
        return FakeServer(network, _running_process_loop(), interceptors)

    async def start_engine(supervisor: Any) -> tuple[FakeEngineHost, FakeEngineHost]:
        host = engine_pool.start(supervisor._options, supervisor._on_message)  # noqa: SLF001  # replaces its `_start`
        return host, host

    open_store: Callable[..., Any] = disk.open_store
    if isinstance(disk, SharedDatabase):
        open_store = store_opener(disk, _running_process_loop)
    changes: tuple[AbstractContextManager[Any], ...] = (
        patch.object(grpc.aio, "insecure_channel", open_channel),
        patch.object(grpc.aio, "server", open_server),
        patch("penstock.chassis.security.channels.Http2Channel", lambda address, _tls, **_: open_channel(address)),
        patch("penstock.chassis.server.server.Http2Server", lambda chain, *_, **__: open_server(interceptors=chain)),
        patch.object(time, "time", world.unix_time),
        patch.object(time, "monotonic", world.monotonic_time),
        patch.object(time, "perf_counter", world.monotonic_time),
        patch.object(os, "urandom", random_bytes),
        patch.object(random, "_urandom", random_bytes),
        patch("penstock.chassis.ids._source", RandomSource()),  # as the original has bytes of other worlds
        *(patch(f"{module}.random", rng) for module in MODULES_WITH_RANDOM),
        patch("penstock.chassis.lifecycle._stops", {}),  # by loop; the original would keep the loops of all worlds
        patch("penstock.chassis.observability.deferred._by_loop", {}),  # as above
        patch("penstock.chassis.streams.ticks._groups", {}),  # as above
        patch("penstock.queue.accounting.REPORT_TIMEOUT_S", UNREPORTED_RUN_TIMEOUT_S),
        patch("penstock.chassis.server.write_timeout.CLIENT_READ_TIMEOUT_S", CLIENT_READ_TIMEOUT_S),
        # The service binds its clock as a default argument, at import.
        patch.dict(_keyword_defaults("penstock.scheduler.__main__.SchedulerService"), now=world.monotonic_time),
        patch("penstock.auth.__main__.opened_store", open_store),
        patch("penstock.auth.__main__.opened_responses", responses.open_store),
        *([patch("penstock.auth.__main__.UsageReader", disk.usage_reader)] if isinstance(disk, RegionDisks) else ()),
        patch("penstock.batch.__main__.opened_store", batches.open_store),
        *_batch_settings(),
        patch("penstock.client.endpoints.unblocked_poller", nullcontext),  # a world has no sockets
        patch("penstock.edge.__main__.serving_http", http_opener(open_server)),
        patch("penstock.chassis.server.server._serving_operators", _without_operators),
        # A process that is killed leaves its collector in the original registry, and with it its world.
        patch("penstock.chassis.server.server.observing", lambda _: nullcontext()),
        patch.object(EngineSupervisor, "_start", start_engine),
    )
    with ExitStack() as stack:
        stack.enter_context(_gc_disabled())
        for change in changes:
            stack.enter_context(change)
        stack.callback(_leave_loops)
        yield


def _leave_loops() -> None:
    """Reset what `World` sets as it runs the loops of its processes."""
    asyncio._set_running_loop(None)  # noqa: SLF001
    sys.set_asyncgen_hooks(None, None)


def _batch_settings() -> Iterator[AbstractContextManager[Any]]:
    """Yield changes of the constants of batches: a file of some lines has several chunks, and windows are seconds."""
    window_range = (1.0, 7 * 86_400.0)
    yield patch("penstock.batch.jobs.division.CHUNK_LINES", LINES_PER_CHUNK)
    yield patch("penstock.batch.store.job_worker.JOB_LEASE_S", JOB_LEASE_S)
    yield patch("penstock.batch.store.job_lease.JOB_LEASE_S", JOB_LEASE_S)
    yield patch("penstock.batch.store.job_lease.RENEWAL_S", JOB_LEASE_S / 3)
    yield patch("penstock.batch.service.WINDOW_RANGE_S", window_range)
    yield patch("penstock.edge.api.openai.batches.objects.WINDOW_RANGE_S", window_range)
    yield patch.dict("penstock.edge.api.openai.batches.objects.WINDOW_UNITS", m=1.0)


@asynccontextmanager
async def _without_operators(_: Any, admin: Any, server: Any, __: Any) -> AsyncIterator[None]:
    """Open no listener for operators; checks read the figures of `admin` in this process."""
    server.grpc_server.admin = admin
    yield


def _keyword_defaults(service: str) -> dict[str, Any]:
    defaults: dict[str, Any] = pkgutil.resolve_name(service).__init__.__kwdefaults__
    return defaults


def _running_process_loop() -> ProcessLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ProcessLoop), "only processes of a world open channels and servers"
    return loop


def _for_this_thread(seeded: Callable[[int], bytes], original: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """Return a function that calls `seeded` in this thread and `original` in all others, such as exporters' threads."""
    world_thread = threading.get_ident()

    def random_bytes(count: int) -> bytes:
        return seeded(count) if threading.get_ident() == world_thread else original(count)

    return random_bytes


@contextmanager
def logs_silenced() -> Iterator[None]:
    """Discard the log lines of the block's processes; leave the block only after their objects have been freed."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


@contextmanager
def _gc_disabled() -> Iterator[None]:
    """Disable the garbage collector, which would close generators at times that the seed does not decide."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
