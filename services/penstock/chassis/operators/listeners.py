"""The listener of operators (Admin, channelz, reflection), and the plaintext listener of health probes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Self

import grpc
import structlog
from grpc_channelz.v1 import channelz
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from penstock.chassis.config import ConfigError, ServiceConfig
from penstock.chassis.operators.access import UNIX_PREFIX, OperatorAccess, OperatorInterceptor, check_protected
from penstock.chassis.operators.audit.actions import AuditInterceptor
from penstock.chassis.operators.audit.log import AuditLog
from penstock.chassis.operators.unix_socket import path_of, private_files, remove_stale_socket
from penstock.chassis.security.process import LOCAL, ProcessSecurity
from penstock.chassis.server.admin import AdminService
from penstock.chassis.server.health import Health
from penstock.chassis.server.interceptors import CallInterceptor
from penstock.v1.admin_pb2_grpc import add_AdminServicer_to_server

log = structlog.get_logger()

MAX_REQUEST_BYTES = 64 << 10  # of an operator or a probe
ACTION_GRACE_S = 2.0  # for an action that is being recorded when the process ends
STOP_GRACE_S = 0.2  # for responses; watches of snapshots never end by themselves
ADMIN_SERVICES = ("penstock.v1.Admin", "grpc.channelz.v1.Channelz", reflection.SERVICE_NAME)

# Makes a server of gRPC with interceptors and a limit of received messages in bytes.
NewServer = Callable[[Sequence[grpc.aio.ServerInterceptor], int], grpc.aio.Server]
BindPort = Callable[[grpc.aio.Server, str], int]  # returns the port


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorListeners:
    """The settings of both listeners. An empty address: off."""

    admin_listen: str = ""
    admin_token: str = ""
    audit_log: str = ""  # path; empty: the process's log alone
    health_listen: str = ""
    security: ProcessSecurity = LOCAL  # of the process; probes are served in plaintext in any case

    @classmethod
    def of(cls, config: ServiceConfig) -> Self:
        return cls(
            admin_listen=config.admin_listen,
            admin_token=config.admin_token,
            audit_log=config.audit_log_path,
            health_listen=config.health_listen,
        )

    def secured(self, security: ProcessSecurity) -> Self:
        """Return these listeners of a process with `security`."""
        return replace(self, security=security)


@asynccontextmanager
async def serving_admin(
    listeners: OperatorListeners, admin: AdminService, services: Sequence[str], new_server: NewServer
) -> AsyncIterator[str]:
    """Serve operators during the block; yield the address. Reflection describes `services`, too.

    Raises ConfigError if the listener would serve everybody, or cannot be opened.
    """
    listen, security = listeners.admin_listen, listeners.security
    check_protected(listen, token=listeners.admin_token, is_tls=security.is_mutual(listen))
    access = OperatorAccess(
        is_unix=listen.startswith(UNIX_PREFIX), token=listeners.admin_token, trust_domain=security.trust_domain
    )
    audit = AuditLog(admin.tier, admin.instance_id, listeners.audit_log)
    audited = AuditInterceptor(audit)
    admin.access_figures = lambda: {**access.figures(), **audit.figures()}
    admitting = OperatorInterceptor(access, audit.record_refusals)
    grpc_server = new_server((CallInterceptor(), admitting, audited), MAX_REQUEST_BYTES)
    add_AdminServicer_to_server(admin, grpc_server)
    channelz.add_channelz_servicer(grpc_server)
    reflection.enable_server_reflection((*services, *ADMIN_SERVICES), grpc_server)
    async with audit.opened():
        address = _bind(grpc_server, listen, security.bind, "ADMIN_LISTEN")
        await grpc_server.start()
        log.info("admin_listening", address=address)
        try:
            yield address
        finally:
            with suppress(TimeoutError):
                await asyncio.wait_for(audited.idle.wait(), ACTION_GRACE_S)
            await grpc_server.stop(STOP_GRACE_S)
            admitting.report_rest()


@asynccontextmanager
async def serving_health(listen: str, health: Health, new_server: NewServer) -> AsyncIterator[str]:
    """Serve health alone, in plaintext, for probes that have no certificate; yield the address."""
    grpc_server = new_server((CallInterceptor(),), MAX_REQUEST_BYTES)
    add_HealthServicer_to_server(health, grpc_server)
    address = _bind(grpc_server, listen, _bind_plaintext, "HEALTH_LISTEN")
    await grpc_server.start()
    log.info("health_listening", address=address)
    try:
        yield address
    finally:
        await grpc_server.stop(None)


def _bind_plaintext(grpc_server: grpc.aio.Server, listen: str) -> int:
    return grpc_server.add_insecure_port(listen)


def _bind(grpc_server: grpc.aio.Server, listen: str, bind: BindPort, setting: str) -> str:
    """Return the bound address. Raises ConfigError if binding fails."""
    is_unix = listen.startswith(UNIX_PREFIX)
    if is_unix:
        remove_stale_socket(path_of(listen))
    try:
        with private_files():
            port = bind(grpc_server, listen)
    except RuntimeError as error:
        text = f"cannot listen on {listen}; is the port taken? Set another with {setting} of the tier"
        raise ConfigError(text) from error
    return listen if is_unix else f"{listen.rpartition(':')[0]}:{port}"
