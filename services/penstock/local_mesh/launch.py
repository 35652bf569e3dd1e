"""Launches a local mesh: its plan, ports, certificates and store, its processes, and its state file while it runs."""

import base64
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.auth.identity.keys import key_id_of
from penstock.certificates.authority import Authority
from penstock.chassis.config import ConfigError
from penstock.chassis.operators.unix_socket import is_path_short
from penstock.edge.stored.cipher import KEY_BYTES
from penstock.local_mesh.certificates import make_certificates, new_authority
from penstock.local_mesh.mesh import LocalMesh, ProcessStatusFn
from penstock.local_mesh.paths import admin_socket
from penstock.local_mesh.plan import MeshOptions, MeshPlan, check_model, plan_mesh
from penstock.local_mesh.ports import check_ports, reserved_base_port
from penstock.local_mesh.postgres import LocalPostgres
from penstock.local_mesh.state import state_folder, state_path, write_state

LONGEST_NAME = "scheduler-4"  # of a process
SHORT_TEMPORARY_FOLDER = "/tmp"  # noqa: S108  # TMPDIR may be as long as the folder of the mesh

TransformPlan = Callable[[MeshPlan], Awaitable[MeshPlan]]


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier mesh; a running one would use these ports
    folder.mkdir(mode=0o700)


@contextmanager
def socket_folder(folder: Path) -> Iterator[Path]:
    """Yield the folder of the Admin sockets: `folder`, or a private one for the block if its path is too long."""
    if is_path_short(admin_socket(folder, LONGEST_NAME)):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="penstock-", dir=SHORT_TEMPORARY_FOLDER) as short:
        yield Path(short)


def _api_key() -> str:
    """Return PENSTOCK_API_KEY or a new key; raises ConfigError if the given key is invalid."""
    given = os.environ.get("PENSTOCK_API_KEY", "")
    if given and not key_id_of(given):
        message = "PENSTOCK_API_KEY must have the form pk_ID_SECRET with at least 22 letters and digits; or unset it"
        raise ConfigError(message)
    return given or f"pk_dev_{secrets.token_hex(16)}"


@dataclass(frozen=True, slots=True)
class MeshSecrets:
    """Secrets that the meshes of several regions share: the key of callers, the authority of all certificates, and the
    secrets of auth.

    Raises ConfigError if PENSTOCK_API_KEY is invalid.
    """

    api_key: str = field(default_factory=_api_key)
    pepper: str = field(default_factory=secrets.token_hex)
    mesh_secret: str = field(default_factory=secrets.token_hex)
    authority: Authority = field(default_factory=new_authority)


def envoy_program() -> str | None:
    """Return the path of `envoy` beside this Python (from its wheel) or on PATH; None if it is not installed."""
    candidate = Path(sys.executable).with_name("envoy")
    return str(candidate) if candidate.exists() else shutil.which("envoy")


def ignore_status(_name: str, _what: str) -> None: ...


@asynccontextmanager
async def local_mesh(
    options: MeshOptions,
    on_status: ProcessStatusFn = ignore_status,
    *,
    transform_plan: TransformPlan | None = None,
    mesh_secrets: MeshSecrets | None = None,
) -> AsyncIterator[LocalMesh]:
    """Run a mesh for the duration of the block. `base_port` 0 chooses free ports; `transform_plan` changes the plan.
    Without `mesh_secrets`, it has its own.

    Raises ConfigError if the model is not installed, OSError if a port is in use, and ChildFailedError or TimeoutError
    if the mesh does not start. Every process has ended after the block, on every path.
    """
    with ExitStack() as stack:
        if options.base_port == 0:
            options = replace(options, base_port=stack.enter_context(reserved_base_port()))
        folder = state_folder() / f"mesh-{options.base_port}"
        sockets = stack.enter_context(socket_folder(folder))
        mesh = await _create(options, folder, sockets, transform_plan, mesh_secrets or MeshSecrets())
        async with _running(mesh, on_status):
            yield mesh


async def _create(
    options: MeshOptions, folder: Path, sockets: Path, transform_plan: TransformPlan | None, mesh_secrets: MeshSecrets
) -> LocalMesh:
    """Plan a mesh, and write its certificates into `folder`, which is made empty. Starts no process."""
    postgres = LocalPostgres(folder) if options.store == "postgres" else None
    plan = plan_mesh(
        options,
        folder,
        mesh_secrets.api_key,
        envoy=envoy_program(),
        cores=os.cpu_count() or 1,
        sockets=sockets,
        store=postgres.url() if postgres else "",
        response_keys=f"local:{base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()}",  # the store is new, too
        auth_secrets={"PEPPER": mesh_secrets.pepper, "MESH_SECRET": mesh_secrets.mesh_secret},
    )
    check_model(options.model)
    check_ports(plan)
    _make_empty(folder)
    if not options.insecure:
        make_certificates(plan, folder, mesh_secrets.authority)
    plan = await transform_plan(plan) if transform_plan else plan
    return LocalMesh(options, plan, folder, mesh_secrets.api_key, postgres)


@asynccontextmanager
async def _running(mesh: LocalMesh, on_status: ProcessStatusFn) -> AsyncIterator[None]:
    with mesh.postgres.running() if mesh.postgres else nullcontext():
        try:
            await mesh.start(on_status)
            write_state(mesh.state())
            yield
            await mesh.drain(on_status)
            if mesh.postgres:
                mesh.postgres.export_ledger()
        finally:
            state_path(mesh.options.base_port).unlink(missing_ok=True)
            await mesh.processes.kill_all()
