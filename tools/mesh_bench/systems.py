"""The compared systems as running processes: a router before the mock worker, or a mesh with the simulated engine."""

import json
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engine_bench.environments import PeerUnavailable
from mesh_bench.native import LoadTarget
from mesh_bench.peers import MOCK_MODEL, PeerStart, RouterPeer
from mesh_bench.points import FASTEST_STEP_MS
from mesh_bench.processes import StartFailed, free_port, start, stop, tree, wait_listening

ROUTER = "router"  # tier of a peer's processes
_MESH_MODEL = "SmolLM2-135M-Instruct"  # its tokenizer; the engine is simulated
_READY_TIMEOUT_S = 90.0
_SERVICES = Path(__file__).parents[2] / "services"


class System(Protocol):
    def at_step(self, step_ms: float) -> LoadTarget:
        """Return the target, whose streams now receive a token each `step_ms`. Raises PeerUnavailable."""

    def close(self) -> None: ...


class RouterSystem:
    """A peer before a mock worker, or the mock worker alone if `peer` is None. Raises PeerUnavailable."""

    def __init__(self, peer: RouterPeer | None, environment: Path, upstream: Path, folder: Path) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._upstream_port = self._port = free_port()
        pids: Mapping[str, Sequence[int]] = {}
        header = ""
        try:
            self._start([str(upstream), str(self._port)], {}, folder / "upstream.log", self._port)
            if peer:
                key, self._port = f"sk-{secrets.token_hex(24)}", free_port()
                at = PeerStart(
                    programs=environment / "bin",
                    folder=folder,
                    port=self._port,
                    spare_port=free_port(),
                    upstream_port=self._upstream_port,
                    key=key,
                )
                self._start(peer.command(at), peer.settings, folder / f"{peer.name}.log", self._port)
                pids = {ROUTER: tree(self._processes[-1].pid)}
                header = f"authorization: Bearer {key}" if peer.needs_key else ""
        except (StartFailed, OSError) as error:
            self.close()
            raise PeerUnavailable(str(error)) from error
        self._target = LoadTarget(port=self._port, model=MOCK_MODEL, header=header, processes=pids)

    def at_step(self, step_ms: float) -> LoadTarget:
        pace = 0 if step_ms == FASTEST_STEP_MS else round(step_ms * 1e3)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        opener.open(f"http://127.0.0.1:{self._upstream_port}/pace?us={pace}", timeout=10).read()
        return self._target

    def close(self) -> None:
        for process in reversed(self._processes):
            stop(process)
        self._processes.clear()

    def _start(self, command: Sequence[str], settings: Mapping[str, str], log: Path, port: int) -> None:
        self._processes.append(start(command, settings, log))
        wait_listening(port, self._processes[-1], log)


@dataclass(slots=True, kw_only=True)
class MeshSystem:
    """`penstock up` with the simulated engine. Another step time starts another mesh."""

    folder: Path
    base_port: int
    is_mutual: bool = False  # mTLS between the processes
    settings: Sequence[str] = ()  # PENSTOCK_<TIER>_<NAME>=VALUE
    _process: subprocess.Popen[bytes] | None = None
    _step_ms: float = 0.0
    _target: LoadTarget | None = None

    def at_step(self, step_ms: float) -> LoadTarget:
        if self._target is None or step_ms != self._step_ms:
            self.close()
            self._target = self._start(step_ms)
            self._step_ms = step_ms
        return self._target

    def close(self) -> None:
        if self._process:
            stop(self._process)
        self._process = self._target = None

    def _start(self, step_ms: float) -> LoadTarget:
        law = self.folder / "step_time.toml"
        law.write_text(
            f"[step_time]\nbase_ms = {step_ms}\nprefill_token_ms = 0.0\ndecode_seq_ms = 0.0\n", encoding="utf-8"
        )
        log, note = self.folder / "mesh.log", self.folder / f"mesh-{self.base_port}.json"
        note.unlink(missing_ok=True)
        environment = {"PENSTOCK_STATE": str(self.folder), "PYTHONPATH": str(_SERVICES)}
        self._process = start(self._command(law), environment, log)
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while not note.is_file():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise PeerUnavailable(f"the mesh did not start; see {log}")
            time.sleep(0.1)
        return _target_of(json.loads(note.read_text(encoding="utf-8")))

    def _command(self, law: Path) -> list[str]:
        settings = [f"PENSTOCK_WORKER_SIM_STEP_TIME_FILE={law}", *self.settings]
        return [
            *(sys.executable, "-m", "penstock.cli", "up", "--engine", "sim", "--no-envoy"),
            *("--base-port", str(self.base_port)),
            *([] if self.is_mutual else ["--insecure"]),
            *(word for setting in settings for word in ("--set", setting)),
        ]


def _target_of(note: dict[str, object]) -> LoadTarget:
    processes: dict[str, list[int]] = {}
    for process in note["processes"]:  # type: ignore[attr-defined]
        processes.setdefault(process["tier"], []).extend(tree(process["pid"]))
    return LoadTarget(
        port=int(str(note["http"]).rpartition(":")[2]),
        model=_MESH_MODEL,
        header=f"authorization: Bearer {note['api_key']}",
        processes=processes,
        grpc=str(note["grpc"]),
        key=str(note["api_key"]),
    )
