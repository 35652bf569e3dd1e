"""A mesh with Penstock's own engine and the default model, for the time of the trials."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mesh_bench.processes import StartFailed, start, stop
from penstock.worker.engine.loaders.load import load_card

_MODEL = "SmolLM2-135M-Instruct"
_THREADS = 2
_READY_TIMEOUT_S = 180.0
_SERVICES = Path(__file__).parents[2] / "services"


@dataclass(frozen=True, slots=True)
class RunningMesh:
    base_url: str  # with /v1
    api_key: str
    tokenizer: Path  # folder

    def settings(self) -> dict[str, str]:
        """Return the variables of `scripts/steps.py:Target`."""
        return {
            "TRIAL_BASE_URL": self.base_url,
            "TRIAL_API_KEY": self.api_key,
            "TRIAL_MODEL": _MODEL,
            "TRIAL_TOKENIZER": str(self.tokenizer),
        }


@contextmanager
def running_mesh(folder: Path) -> Iterator[RunningMesh]:
    """Run a mesh on free ports. `folder`: for its state, its log and the tokenizer. Raises StartFailed."""
    command = [
        *(sys.executable, "-m", "penstock.cli", "up", "--engine", "torch", "--model", _MODEL, "--no-envoy"),
        *("--base-port", "0", "--set", f"PENSTOCK_WORKER_THREADS={_THREADS}"),
    ]
    log = folder / "mesh.log"
    process = start(command, {"PENSTOCK_STATE": str(folder), "PYTHONPATH": str(_SERVICES)}, log)
    try:
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while not (notes := list(folder.glob("mesh-*.json"))):
            if process.poll() is not None or time.monotonic() > deadline:
                raise StartFailed(
                    f"the mesh did not start; its log ends in:\n{log.read_text(errors='replace')[-2000:]}"
                )
            time.sleep(0.1)
        note = json.loads(notes[0].read_text(encoding="utf-8"))
        yield RunningMesh(f"http://{note['http']}/v1", note["api_key"], write_tokenizer(folder / "tokenizer"))
    finally:
        stop(process)


def write_tokenizer(folder: Path) -> Path:
    """Write the tokenizer of the default model as transformers reads it, for clients that count tokens themselves."""
    card = load_card(_MODEL)
    folder.mkdir()
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": card.chat_template,
        "model_max_length": card.context_length,
        **dict(card.special_tokens),
    }
    (folder / "tokenizer.json").write_text(card.tokenizer_json, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
