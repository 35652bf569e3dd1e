"""One listening gRPC server, from bound port to drained: health, reflection, channelz, admin and interceptors."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from grpc_channelz.v1 import channelz
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from penstock.chassis.channels import MAX_MESSAGE_BYTES
from penstock.chassis.config import ConfigError
from penstock.chassis.lifecycle import Stop, background, current_stop
from penstock.chassis.observability.deferred import deferred_calls
from penstock.chassis.server.admin import AdminService, OperatorInterceptor
from penstock.chassis.server.call_metrics import CallCounter
from penstock.chassis.server.health import Health
from penstock.chassis.server.interceptors import CallInterceptor
from penstock.v1.admin_pb2_grpc import add_AdminServicer_to_server

log = structlog.get_logger()

Registration = tuple[Callable[[Any, Any], None], Any]

CLEANUP_GRACE_S = 2.0  # s; for the `finally` blocks of handlers that were cancelled
UNBOUNDED_GRACE_S = 1e6  # s

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", 10_000),  # per connection; a proxy brings all its clients on a few
    # C-core cancels calls at random once a thousand wait for the loop to take them: a burst is the queue's to judge.
    ("grpc.server.max_pending_requests", 10_000),
    ("grpc.server.max_pending_requests_hard_limit", 20_000),
    ("grpc.so_reuseport", 0),  # a second process on the port must fail, not take half of the calls
    # Clients ping every second on silent streams; C-core's default of 5 minutes would close them for it.
    ("grpc.http2.min_ping_interval_without_data_ms", 300),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),  # without it a frozen client is noticed after a minute
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_channelz", 1),
)


def _bind(grpc_server: grpc.aio.Server, listen: str) -> int:
    """Return the port; raises ConfigError where it cannot be had."""
    try:
        return grpc_server.add_insecure_port(listen)
    except RuntimeError as error:
        raise ConfigError(f"cannot listen on {listen}; is the port taken? Its tier's LISTEN sets another") from error


@dataclass
class Server:
    """A server that listens. Handlers hold `address` to tell others where they are."""

    grpc_server: grpc.aio.Server
    health: Health
    calls: CallCounter
    address: str  # host:port by which others reach it

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def set_ready(self, *, is_ready: bool) -> None:
        """Say by health whether new calls are wanted, for example not before a model is loaded."""
        self.health.set_ready(is_ready=is_ready)

    async def stop_accepting(self, stop: Stop) -> None:
        """NOT_SERVING from the moment a stop is asked, while the tier may still be ending its own work."""
        await stop.requested.wait()
        self.health.close()

    async def drain(self, grace: float, forced: asyncio.Event) -> None:
        """NOT_SERVING, no new calls, let work end within `grace` seconds or until `hurried`, cancel the rest."""
        begun, working = time.monotonic(), self.calls.in_flight
        self.health.close()
        # The grace is ours to keep: where gRPC's own runs out while a second stop ends the server, it crashes.
        stopping = asyncio.ensure_future(self.grpc_server.stop(UNBOUNDED_GRACE_S))
        await _wait_any(grace, self.calls.idle.wait(), forced.wait())
        cancelled = self.calls.in_flight
        if not cancelled and not self.calls.operator_calls:  # watchers of health and snapshots never end by themselves
            await asyncio.wait([stopping], timeout=max(0.0, begun + grace - time.monotonic()))
        await self.grpc_server.stop(None)
        await stopping
        await _wait_any(CLEANUP_GRACE_S, self.calls.idle.wait())
        deferred_calls().flush()
        took = round(time.monotonic() - begun, 3)
        log.info("drained", address=self.address, working=working, cancelled=cancelled, took_s=took)


@asynccontextmanager
async def serving(
    listen: str,
    registrations: Iterable[Registration],
    *,
    admin: AdminService | None = None,
    drain_grace: float = 30.0,
    advertise: str = "",
    is_ready: bool = True,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    message_bytes: int = MAX_MESSAGE_BYTES,
) -> AsyncIterator[Server]:
    """Serve `registrations`, pairs of add_X_to_server and servicer, until the block is left; then drain.

    `drain_grace` gives way to the grace of Admin.Drain; `message_bytes` bounds what a caller can have parsed. Raises
    ConfigError when `listen` cannot be bound.
    """
    calls = CallCounter()
    gate = OperatorInterceptor(admin.token if admin else "")
    options = (*SERVER_OPTIONS, ("grpc.max_receive_message_length", message_bytes))
    core = grpc.aio.server(interceptors=(CallInterceptor(calls), gate, *interceptors), options=options)
    if admin:
        admin.calls = calls
        registrations = [*registrations, (add_AdminServicer_to_server, admin)]
    health = _register(core, registrations)
    address = advertised_address(listen, _bind(core, listen), advertise)
    await core.start()
    server = Server(core, health, calls, address)
    server.set_ready(is_ready=is_ready)
    log.info("listening", address=address, port=server.port)
    stop = current_stop()
    try:
        async with background(server.stop_accepting(stop)):
            yield server
    finally:
        await server.drain(drain_grace if stop.grace is None else stop.grace, stop.forced)


def advertised_address(listen: str, port: int, advertise: str) -> str:
    """host:port by which others reach a server bound to `listen`; a wildcard without `advertise` means loopback."""
    if listen.startswith("unix:"):
        return listen
    host = advertise or listen.rpartition(":")[0]
    if advertise and ":" in advertise.rpartition("]")[2]:
        return advertise
    return f"{_LOOPBACK_BY_WILDCARD.get(host, host)}:{port}"


_LOOPBACK_BY_WILDCARD = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


class _ServiceNames:
    """Stands for the server while services are added, to learn their names."""

    def __init__(self, core: grpc.aio.Server) -> None:
        self.core = core
        self.names: list[str] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self.names += [each.service_name() for each in handlers]
        self.core.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, service_name: str, methods: dict[str, Any]) -> None:
        self.core.add_registered_method_handlers(service_name, methods)


def _register(core: grpc.aio.Server, registrations: Iterable[Registration]) -> Health:
    registrar = _ServiceNames(core)
    for add, servicer in registrations:
        add(servicer, registrar)
    health = Health(registrar.names)
    add_HealthServicer_to_server(health, registrar)
    channelz.add_channelz_servicer(core)
    names = [*registrar.names, "grpc.channelz.v1.Channelz", reflection.SERVICE_NAME]
    reflection.enable_server_reflection(names, core)
    return health


async def _wait_any(seconds: float, *waits: Any) -> None:
    """Return when one of `waits` is done or `seconds` have passed."""
    pending = [asyncio.ensure_future(each) for each in waits]
    try:
        await asyncio.wait(pending, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in pending:
            each.cancel()
