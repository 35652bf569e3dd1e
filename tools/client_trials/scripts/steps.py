"""Runs the steps of a trial, and prints the outcome of each as a line of JSON. Needs Python alone.

The environment of a client has this module and the client, and nothing else of Penstock.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_ERROR_CHARS = 600


@dataclass(frozen=True, slots=True)
class Target:
    base_url: str  # with /v1
    api_key: str
    model: str
    tokenizer: str  # folder of the model's tokenizer, as transformers reads it


Steps = Mapping[str, Callable[[Target], object]]


def run_steps(steps: Steps) -> None:
    """Run every step, also after one that failed. Ends the process with 1 if a step failed."""
    target = Target(*(os.environ[f"TRIAL_{name}"] for name in ("BASE_URL", "API_KEY", "MODEL", "TOKENIZER")))
    has_failed = False
    for name, step in steps.items():
        error = ""
        try:
            step(target)
        except Exception as failure:  # noqa: BLE001 - any error of a client is the outcome of the step
            error = f"{type(failure).__name__}: {failure}"[:MAX_ERROR_CHARS]
            has_failed = True
        print(json.dumps({"step": name, "error": error}), flush=True)
    sys.exit(has_failed)


def expect(condition: object, found: object) -> None:
    """Raises AssertionError with what was found instead, unless `condition` holds."""
    if not condition:
        raise AssertionError(f"found {found!r}")


def run_program(command: Sequence[str], variables: Mapping[str, str]) -> None:
    """Run a program of this environment. Raises AssertionError with the end of its output if it fails."""
    program = str(Path(sys.executable).with_name(command[0]))
    ended = subprocess.run(
        [program, *command[1:]], env=variables, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    expect(ended.returncode == 0, (ended.stdout + ended.stderr)[-MAX_ERROR_CHARS:])
