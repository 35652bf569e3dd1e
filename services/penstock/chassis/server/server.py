"""One listening gRPC server, from bound port to drained: health and interceptors.

Admin, reflection and channelz are on the listener of operators, which lives as long as the server.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import grpc
import structlog
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from penstock.chassis.channels import MAX_MESSAGE_BYTES
from penstock.chassis.config import ConfigError
from penstock.chassis.http2.limits import Http2Limits
from penstock.chassis.http2.server import Http2Server
from penstock.chassis.lifecycle import Stop, background, current_stop
from penstock.chassis.observability.deferred import deferred_calls
from penstock.chassis.observability.metrics import Observe, observing
from penstock.chassis.operators.listeners import OperatorListeners, serving_admin, serving_health
from penstock.chassis.security.interceptor import PeerInterceptor
from penstock.chassis.security.process import LOCAL, ProcessSecurity
from penstock.chassis.server.admin import AdminService
from penstock.chassis.server.call_metrics import CallCounter
from penstock.chassis.server.health import Health
from penstock.chassis.server.interceptors import CallInterceptor
from penstock.chassis.server.process_metrics import process_observations

log = structlog.get_logger()

Registration = tuple[Callable[[Any, Any], None], Any]

CLEANUP_GRACE_S = 2.0  # for the `finally` blocks of cancelled handlers
UNBOUNDED_GRACE_S = 1e6

# Of the listeners of operators and probes, which gRPC's C core serves.
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # a second process on the port must fail, not receive half of the calls
    # Clients ping every second on silent streams; C-core's default minimum of 5 minutes would close their connections.
    ("grpc.http2.min_ping_interval_without_data_ms", 300),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),  # without it gRPC detects a frozen client after a minute
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_channelz", 1),
)


def _bind(grpc_server: Http2Server, listen: str, security: ProcessSecurity, *, is_door: bool) -> int:
    """Return the bound port. Raises ConfigError if binding fails."""
    try:
        return security.bind(grpc_server, listen, is_development_door=is_door)
    except RuntimeError as error:
        text = f"cannot listen on {listen}; is the port taken? Set another with LISTEN of the tier"
        raise ConfigError(text) from error


@dataclass
class Server:
    """A server that listens."""

    grpc_server: Http2Server
    health: Health
    calls: CallCounter
    address: str  # host:port by which other processes reach it
    proxy_address: str = ""  # host:port for proxies; empty: none
    admin_address: str = ""  # unix:path or host:port of the operators' listener; empty: off
    health_address: str = ""  # host:port of the probes' listener; empty: off

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def set_ready(self, *, is_ready: bool) -> None:
        """Set the readiness that health reports, for example once a model is loaded."""
        self.health.set_ready(is_ready=is_ready)

    async def stop_accepting(self, stop: Stop) -> None:
        """Report NOT_SERVING from a stop request on, while the tier may still be ending its own work."""
        await stop.requested.wait()
        self.health.close()

    async def drain(self, grace: float, forced: asyncio.Event) -> None:
        """Report NOT_SERVING, accept no calls, let work end for `grace` s or until `forced`, then cancel the rest."""
        began_at, working = time.monotonic(), self.calls.in_flight
        self.health.close()
        # The grace is timed here, because calls of operators do not count.
        stopping = asyncio.ensure_future(self.grpc_server.stop(UNBOUNDED_GRACE_S))
        await _wait_any(grace, self.calls.idle.wait(), forced.wait())
        cancelled = self.calls.in_flight
        if not cancelled and not self.calls.operator_calls:  # watches of health and snapshots never end by themselves
            await asyncio.wait([stopping], timeout=max(0.0, began_at + grace - time.monotonic()))
        await self.grpc_server.stop(None)
        await stopping
        await _wait_any(CLEANUP_GRACE_S, self.calls.idle.wait())
        deferred_calls().flush()
        took_s = round(time.monotonic() - began_at, 3)
        log.info("drained", address=self.address, working=working, cancelled=cancelled, took_s=took_s)


@asynccontextmanager
async def serving(
    listen: str,
    registrations: Iterable[Registration],
    *,
    admin: AdminService | None = None,
    observe: Observe = tuple,
    operators: OperatorListeners = OperatorListeners(),  # noqa: B008  # immutable
    drain_grace: float = 30.0,
    advertise: str = "",
    is_ready: bool = True,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    limits: Http2Limits = Http2Limits(message_bytes=MAX_MESSAGE_BYTES),  # noqa: B008  # immutable
    security: ProcessSecurity = LOCAL,
    is_door: bool = False,
    proxy_listen: str = "",
    reuses_port: bool = False,
) -> AsyncIterator[Server]:
    """Serve `registrations`, pairs of add_X_to_server and servicer, until the block ends; then drain.

    The grace of Admin.Drain, if given, replaces `drain_grace`. `observe` returns values of the tier's metrics.
    `operators` serve `admin` and the probes, until the
    server has drained.
    `is_door` makes `listen` a development door, in plaintext on loopback; `proxy_listen` is a second address.
    Both may be those of other servers on this host if all of them have `reuses_port`.
    Raises ConfigError if an address cannot be bound, or would serve plaintext off loopback.
    """
    calls = CallCounter()
    peers = (PeerInterceptor(security.trust_domain),) if security.certificates else ()
    intercepting = (CallInterceptor(calls), *peers, *interceptors)
    grpc_server = Http2Server(intercepting, limits, reuses_port=reuses_port)
    health, services = _register(grpc_server, registrations)
    server = Server(grpc_server, health, calls, "")
    async with _serving_operators(operators.secured(security), admin, server, services):
        server.address = advertised_address(listen, _bind(grpc_server, listen, security, is_door=is_door), advertise)
        if proxy_listen:
            port = _bind(grpc_server, proxy_listen, security, is_door=False)
            server.proxy_address = advertised_address(proxy_listen, port, "")
        await grpc_server.start()
        server.set_ready(is_ready=is_ready)
        log.info("listening", address=server.address, port=server.port)
        stop = current_stop()
        with observing(lambda: chain(process_observations(calls, security), observe())):
            try:
                async with background(server.stop_accepting(stop)):
                    yield server
            finally:
                await server.drain(drain_grace if stop.grace is None else stop.grace, stop.forced)


@asynccontextmanager
async def _serving_operators(
    operators: OperatorListeners, admin: AdminService | None, server: Server, services: Sequence[str]
) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        if admin:
            admin.calls = server.calls
            if operators.admin_listen:
                opened = serving_admin(operators, admin, services, _new_server)
                server.admin_address = await stack.enter_async_context(opened)
        if operators.health_listen:
            opened = serving_health(operators.health_listen, server.health, _new_server)
            server.health_address = await stack.enter_async_context(opened)
        yield


def _new_server(interceptors: Sequence[grpc.aio.ServerInterceptor], message_bytes: int) -> grpc.aio.Server:
    options = (*SERVER_OPTIONS, ("grpc.max_receive_message_length", message_bytes))
    return grpc.aio.server(interceptors=interceptors, options=options)


def advertised_address(listen: str, port: int, advertise: str) -> str:
    """Return host:port by which other processes reach a server bound to `listen`; for a wildcard, loopback."""
    if listen.startswith("unix:"):
        return listen
    host = advertise or listen.rpartition(":")[0]
    if advertise and ":" in advertise.rpartition("]")[2]:
        return advertise
    return f"{_LOOPBACK_BY_WILDCARD.get(host, host)}:{port}"


_LOOPBACK_BY_WILDCARD = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


class _ServiceNames:
    """Stands in for the server while services are added, to record their names."""

    def __init__(self, grpc_server: Http2Server) -> None:
        self._grpc_server = grpc_server
        self.names: list[str] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self.names += [each.service_name() for each in handlers]
        self._grpc_server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, service_name: str, methods: dict[str, Any]) -> None:
        self._grpc_server.add_registered_method_handlers(service_name, methods)


def _register(grpc_server: Http2Server, registrations: Iterable[Registration]) -> tuple[Health, list[str]]:
    """Add all services; return health and the names of the services."""
    registrar = _ServiceNames(grpc_server)
    for add, servicer in registrations:
        add(servicer, registrar)
    health = Health(registrar.names)
    add_HealthServicer_to_server(health, registrar)
    return health, registrar.names


async def _wait_any(seconds: float, *waits: Any) -> None:
    """Return when one of `waits` is done or `seconds` have passed."""
    pending = [asyncio.ensure_future(each) for each in waits]
    try:
        await asyncio.wait(pending, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in pending:
            each.cancel()
