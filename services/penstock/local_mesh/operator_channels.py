"""Channels of operators, with the certificate of a local mesh's operator or with one from the settings."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from penstock.chassis.channels import CONNECT_TIMEOUT_MS, channel
from penstock.chassis.config import ConfigError
from penstock.chassis.security.certificates import (
    CertificatePaths,
    Certificates,
    CertificatesInvalid,
    load_certificates,
)
from penstock.chassis.security.channels import mutual_channel
from penstock.chassis.security.identity import IdentityInvalid, identity_of_names, server_name
from penstock.chassis.security.process import is_loopback_address
from penstock.local_mesh.paths import certificate_paths
from penstock.local_mesh.plan import OPERATOR, ProcessSpec
from penstock.local_mesh.state import MeshState, ProcessState, running_meshes

CONNECT_TIMEOUT_S = CONNECT_TIMEOUT_MS / 1_000


def process_channel(spec: ProcessSpec, folder: Path) -> grpc.aio.Channel:
    """Open a channel to health of a process of the mesh in `folder`, with the certificate of its operator."""
    if spec.health or not spec.is_mutual:
        return channel(spec.health or spec.address)
    certificates = load_certificates(certificate_paths(folder, OPERATOR))
    return mutual_channel(spec.address, certificates, server_name(spec.tier, spec.instance_id))


@asynccontextmanager
async def operator_channel(address: str) -> AsyncIterator[grpc.aio.Channel]:
    """Open a channel to a process, as its operator.

    A process of a mesh that `penstock up` runs here needs nothing else. For others, PENSTOCK_TLS_CERTIFICATE,
    PENSTOCK_TLS_KEY and PENSTOCK_TLS_CA name the certificate of an operator; without them the channel is in plaintext.
    Raises ConfigError if the certificate cannot be used, or the server at `address` has no identity.
    """
    async with await _open(address) as opened:
        yield opened


async def _open(address: str) -> grpc.aio.Channel:
    found = _process_at(address)
    if found:
        state, process = found
        if not process.is_mutual:
            return channel(address)
        certificates = load_certificates(certificate_paths(Path(state.log_folder), OPERATOR))
        return mutual_channel(address, certificates, server_name(process.tier, process.instance_id or process.name))
    paths = _paths_from_environment()
    if paths is None or address.startswith("unix:"):
        return channel(address)
    try:
        certificates = load_certificates(paths)
    except CertificatesInvalid as error:
        raise ConfigError(str(error)) from error
    return await _open_unknown(address, certificates)


async def _open_unknown(address: str, certificates: Certificates) -> grpc.aio.Channel:
    """Open a channel to a server of any tier, whose certificate is read first to learn the tier."""
    try:
        name = await _name_of_server(address, certificates)
    except ssl.SSLError as error:
        if is_loopback_address(address):  # the development door of an edge
            return channel(address)
        raise ConfigError(f"{address} does not accept the certificate of this operator: {error}") from error
    except (OSError, TimeoutError):
        name = server_name("unreachable")  # the call reports that nobody listens; no certificate has this name
    except IdentityInvalid as error:
        raise ConfigError(f"the server at {address} is not a process of Penstock: {error}") from error
    return mutual_channel(address, certificates, name)


async def _name_of_server(address: str, certificates: Certificates) -> str:
    host, _, port = address.rpartition(":")
    context = certificates.client_context
    context.set_alpn_protocols(["h2"])
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        _, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context, server_hostname="")
        identity = identity_of_names(writer.get_extra_info("ssl_object").getpeercert() or {})
        writer.close()
    return server_name(identity.tier, identity.instance_id)


def _process_at(address: str) -> tuple[MeshState, ProcessState] | None:
    for state in running_meshes():
        for process in state.processes:
            if process.address == address:
                return state, process
    return None


def _paths_from_environment() -> CertificatePaths | None:
    given = [os.environ.get(f"PENSTOCK_TLS_{name}", "") for name in ("CERTIFICATE", "KEY", "CA")]
    if not any(given):
        return None
    if not all(given):
        raise ConfigError("set PENSTOCK_TLS_CERTIFICATE, PENSTOCK_TLS_KEY and PENSTOCK_TLS_CA together")
    return CertificatePaths(*map(Path, given))
