"""Engines as processes: one per peer, spoken to line by line. Who is not asked anything waits and uses no CPU."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Any

from engine_bench.cells import Cell, Trace
from engine_bench.drivers.protocol import Ceilings, Setup
from engine_bench.environments import PeerUnavailable
from engine_bench.peers import Peer

TOOLS = Path(__file__).resolve().parents[1]
_LOAD_LIMIT = 600.0  # s, compiling included
_CELL_LIMIT = 300.0  # s
# Of whoever starts the comparison: these would set one engine's threads or libraries and not another's.
_DROPPED = ("OMP_", "GOMP_", "KMP_", "MKL_", "LD_PRELOAD", "PYTHON", "VLLM_")


class Engine:
    """A driver's process. Raises PeerUnavailable when it cannot load or run what is asked of it."""

    def __init__(self, peer: Peer, environment: Path, setup: Setup, log: Path) -> None:
        self._log = log
        self._fresh = TemporaryDirectory(prefix="engine_bench_")
        settings = {**peer.settings(environment), **dict.fromkeys(peer.fresh, self._fresh.name)}
        with log.open("w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                [environment / "bin" / "python", "-P", "-m", f"engine_bench.drivers.{peer.driver}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=variables(os.environ, environment, settings, setup.threads),
            )
        self._ask(asdict(setup), _LOAD_LIMIT)

    @property
    def pid(self) -> int:
        return self._process.pid

    def trace(self, cell: Cell) -> Trace:
        return Trace(**self._ask(asdict(cell), _CELL_LIMIT))

    def ceilings(self, cell: Cell) -> Ceilings:
        return Ceilings(**self._ask(asdict(cell), _CELL_LIMIT))

    def close(self) -> None:
        self._process.kill()
        with self._process:  # closes the pipes and waits
            pass
        self._fresh.cleanup()

    def _ask(self, question: dict[str, Any], limit: float) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        late = Timer(limit, self._process.kill)
        late.start()
        try:
            print(json.dumps(question), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            late.cancel()
        answer = dict(json.loads(line)) if line else {"error": f"ended, or took more than {limit:.0f} s"}
        if "error" in answer:
            self.close()
            raise PeerUnavailable(f"{answer['error']} (log: {self._log})")
        return answer


def variables(
    inherited: Mapping[str, str], environment: Path, settings: Mapping[str, str], threads: int
) -> dict[str, str]:
    """Environment variables of a driver: the same number of threads for all, nothing fetched, its settings on top."""
    kept = {name: value for name, value in inherited.items() if not name.startswith(_DROPPED)}
    return {
        **kept,
        "PATH": f"{environment / 'bin'}{os.pathsep}{inherited.get('PATH', '')}",
        "PYTHONPATH": str(TOOLS),
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        **settings,
    }
