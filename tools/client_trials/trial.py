"""One trial: the script of a client runs against a mesh, and the outcome of its steps."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from client_trials.clients import Client
from client_trials.environments import Launch
from mesh_bench.processes import start, stop

_TAIL_CHARS = 600  # of the output of a script that ended without an outcome


@dataclass(slots=True)
class Trial:
    """The outcome of a client's steps."""

    client: Client
    passed: list[str] = field(default_factory=list)  # names of steps
    failed: dict[str, str] = field(default_factory=dict)  # error by name of the step
    failure: str = ""  # why the script did not end by itself, or did not start

    @property
    def is_passed(self) -> bool:
        return bool(self.passed) and not self.failed and not self.failure

    def to_json(self) -> dict[str, object]:
        return {
            "client": self.client.name,
            "version": self.client.version,
            "passed": self.passed,
            "failed": self.failed,
            "failure": self.failure,
            "result": "passed" if self.is_passed else "failed",
        }

    def read(self, output: str, status: int | None) -> None:
        """Record the output of the script. `status`: None if it exceeded its time."""
        for line in output.splitlines():
            if line.startswith('{"step":'):
                outcome = json.loads(line)
                if outcome["error"]:
                    self.failed[outcome["step"]] = outcome["error"]
                else:
                    self.passed.append(outcome["step"])
        if status is None:
            self.failure = f"no end within {self.client.timeout_s:.0f} s"
        elif status and not self.failed:
            self.failure = f"it ended with status {status}: {output[-_TAIL_CHARS:]}"
        elif not self.passed and not self.failed:
            self.failure = "it ran no step"


def run_trial(client: Client, launch: Launch, target: Mapping[str, str], log: Path) -> Trial:
    """Run the script of a client to its end, or to its time limit. `target`: variables that name the mesh."""
    process = start(launch.command, {**client.settings, **launch.settings, **target}, log)
    status: int | None
    try:
        status = process.wait(client.timeout_s)
    except subprocess.TimeoutExpired:
        status = None
    finally:
        if process.poll() is None:
            stop(process)
    trial = Trial(client)
    trial.read(log.read_text(encoding="utf-8", errors="replace"), status)
    return trial
