"""Copies a model with other weights under its name, as a rolling update brings them."""

import shutil
from pathlib import Path

from penstock.chassis.config import ConfigError
from penstock.worker.engine.loaders import locate_model

WORD_BYTES = 4
CHANGED_SHARE = 0.1  # of a file, in its middle, beyond the headers of all formats


def copy_with_other_weights(model: str, engine: str, folder: Path) -> Path:
    """Copy `model` into `folder`, which is empty, and change a tenth of its weights; return the path of the copy.

    The copy has the name, tokenizer and template of the model. Raises ConfigError if the engine would read the weights
    of a GGUF file: its blocks of quantized weights are not words of one kind.
    """
    path, name = locate_model(model)
    if path.suffix == ".gguf" and engine != "sim":
        message = f"the weights of {path.name} cannot be changed: name a Hugging Face folder or a .bin with --model"
        raise ConfigError(message)
    if path.is_dir():
        copy = Path(shutil.copytree(path, folder / path.name))
        weights = max(copy.glob("*.safetensors"), key=lambda each: each.stat().st_size)
    else:
        weights = copy = folder / f"{name or path.stem}{path.suffix}"
        shutil.copyfile(path, copy)
        for tokenizer in path.parent.glob("tok*.bin"):
            shutil.copy(tokenizer, folder)
    _reverse_words(weights)
    return copy


def _reverse_words(path: Path) -> None:
    """Reverse the order of the words in the middle of a file, so that each is a valid number at another place."""
    data = bytearray(path.read_bytes())
    length = int(CHANGED_SHARE * len(data)) // WORD_BYTES * WORD_BYTES
    begin = (len(data) - length) // 2 // WORD_BYTES * WORD_BYTES
    words = [data[at : at + WORD_BYTES] for at in range(begin, begin + length, WORD_BYTES)]
    data[begin : begin + length] = b"".join(reversed(words))
    path.write_bytes(data)
