"""The state file of a running mesh, from which other commands on this machine read addresses, key and processes."""

import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from penstock.local_mesh.plan import BASE_PORT


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """One process of a running mesh."""

    name: str
    tier: str
    pid: int
    address: str
    http: str
    metrics: str = ""  # host:port of its /metrics; empty: none, as in a previous release
    admin: str = ""  # address of its Admin service; empty: `address`, as in a previous release
    is_mutual: bool = False  # whether `address` requires a certificate, such as that of the mesh's operator
    instance_id: str = ""  # of its certificate; empty: `name`, as in a previous release

    @property
    def admin_address(self) -> str:
        return self.admin or self.address


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshState:
    """A running mesh."""

    pid: int  # of `penstock up`
    base_port: int
    grpc: str
    http: str
    proxy: str
    api_key: str
    model: str
    log_folder: str
    processes: tuple[ProcessState, ...]
    region: str = ""  # empty: the mesh is the only region

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2)


def state_folder() -> Path:
    """Return the folder of state files, which contain keys: private to this user; PENSTOCK_STATE names another one."""
    chosen = os.environ.get("PENSTOCK_STATE")
    folder = Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        message = f"{folder} belongs to another user; set PENSTOCK_STATE to your own folder"
        raise PermissionError(message)
    return folder


def state_path(base_port: int) -> Path:
    return state_folder() / f"mesh-{base_port}.json"


def write_state(state: MeshState) -> Path:
    path = state_path(state.base_port)
    temporary = path.with_suffix(".new")  # so that other commands never read an incomplete file
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(state.to_json())
    return temporary.replace(path)


def read_state(base_port: int) -> MeshState | None:
    """Return the mesh that runs at `base_port`; None if no mesh runs there."""
    return _read_state(state_path(base_port))


def default_meshes() -> list[MeshState]:
    """Return the mesh at the default ports, or else all running meshes, for a command without a target."""
    default = read_state(BASE_PORT)
    return [default] if default else running_meshes()


def running_meshes() -> list[MeshState]:
    return [state for path in sorted(state_folder().glob("mesh-*.json")) if (state := _read_state(path))]


def _read_state(path: Path) -> MeshState | None:
    try:
        stored = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    state = MeshState(**{**stored, "processes": tuple(ProcessState(**each) for each in stored["processes"])})
    return state if _is_running(state.pid) else None


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # it has ended; another user may have its number
        return False
    return True
