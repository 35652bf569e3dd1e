"""The note a running mesh leaves for other commands on this machine: where it is, its key, its processes."""

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

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2)


def state_folder() -> Path:
    """Folder of ours alone (it holds keys), made when absent; PENSTOCK_STATE chooses another."""
    chosen = os.environ.get("PENSTOCK_STATE")
    folder = Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        message = f"{folder} belongs to another user; set PENSTOCK_STATE to a folder of your own"
        raise PermissionError(message)
    return folder


def state_path(base_port: int) -> Path:
    return state_folder() / f"mesh-{base_port}.json"


def write_state(state: MeshState) -> Path:
    path = state_path(state.base_port)
    unfinished = path.with_suffix(".new")  # whoever looks for meshes meanwhile must not read half a note
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(state.to_json())
    return unfinished.replace(path)


def read_state(base_port: int) -> MeshState | None:
    """Return the mesh running at `base_port`, None when there is none (or its command has ended)."""
    return _read_state(state_path(base_port))


def default_meshes() -> list[MeshState]:
    """Return the mesh at the usual ports, or else all that run: who names none can only mean one of these."""
    usual = read_state(BASE_PORT)
    return [usual] if usual else running_meshes()


def running_meshes() -> list[MeshState]:
    return [note for path in sorted(state_folder().glob("mesh-*.json")) if (note := _read_state(path))]


def _read_state(path: Path) -> MeshState | None:
    try:
        found = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    note = MeshState(**{**found, "processes": tuple(ProcessState(**each) for each in found["processes"])})
    return note if _is_running(note.pid) else None


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # gone, or its number is another user's by now
        return False
    return True
