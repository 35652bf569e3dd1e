"""Driver processes: one per engine, which uses CPU time only while it runs a cell."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Any

from engine_bench.cells import BenchCell, CellTrace
from engine_bench.drivers.protocol import DriverSetup, MachineCeilings
from engine_bench.environments import PeerUnavailable
from engine_bench.peers import EnginePeer

TOOLS = Path(__file__).resolve().parents[1]
_LOAD_TIMEOUT_S = 600.0  # s, including compilation
_CELL_TIMEOUT_S = 300.0  # s
# Variables of the caller that would change the threads or libraries of one engine and not of another.
_DROPPED_PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "LD_PRELOAD", "PYTHON", "VLLM_")


class DriverProcess:
    """A driver in its own process. Raises PeerUnavailable if it cannot load the model or run a cell."""

    def __init__(self, peer: EnginePeer, environment: Path, setup: DriverSetup, log: Path) -> None:
        self._log = log
        self._fresh_folder = TemporaryDirectory(prefix="engine_bench_")
        settings = {**peer.settings(environment), **dict.fromkeys(peer.fresh_folders, self._fresh_folder.name)}
        with log.open("w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                [environment / "bin" / "python", "-P", "-m", f"engine_bench.drivers.{peer.driver}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=driver_environment(os.environ, environment, settings, setup.threads),
            )
        self._request(asdict(setup), _LOAD_TIMEOUT_S)

    @property
    def pid(self) -> int:
        return self._process.pid

    def run_cell(self, cell: BenchCell) -> CellTrace:
        return CellTrace(**self._request(asdict(cell), _CELL_TIMEOUT_S))

    def measure_ceilings(self, cell: BenchCell) -> MachineCeilings:
        return MachineCeilings(**self._request(asdict(cell), _CELL_TIMEOUT_S))

    def close(self) -> None:
        self._process.kill()
        with self._process:  # closes the pipes and waits
            pass
        self._fresh_folder.cleanup()

    def _request(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        timer = Timer(timeout_s, self._process.kill)
        timer.start()
        try:
            print(json.dumps(message), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        answer = dict(json.loads(line)) if line else {"error": f"exited, or took more than {timeout_s:.0f} s"}
        if "error" in answer:
            self.close()
            raise PeerUnavailable(f"{answer['error']} (log: {self._log})")
        return answer


def driver_environment(
    inherited: Mapping[str, str], environment: Path, settings: Mapping[str, str], threads: int
) -> dict[str, str]:
    """Return the variables of a driver: an equal number of threads, no downloads, and its own settings."""
    kept = {name: value for name, value in inherited.items() if not name.startswith(_DROPPED_PREFIXES)}
    return {
        **kept,
        "PATH": f"{environment / 'bin'}{os.pathsep}{inherited.get('PATH', '')}",
        "PYTHONPATH": str(TOOLS),
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        **settings,
    }
