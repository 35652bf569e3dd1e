"""Loads a model's weights. Importing this module loads torch."""

from pathlib import Path

import torch

from penstock.worker.engine.loaders.checkpoint import Checkpoint
from penstock.worker.engine.loaders.gguf import read_gguf
from penstock.worker.engine.loaders.huggingface import read_folder
from penstock.worker.engine.loaders.llama2c import read_llama2c
from penstock.worker.engine.model_card import ModelCard
from penstock.worker.engine.torch.model import Model


def load_model(path: Path, name: str, dtype: torch.dtype, device: torch.device) -> tuple[Model, ModelCard]:
    checkpoint = read_checkpoint(path, name)
    with torch.inference_mode():
        return Model(checkpoint.shape, checkpoint.weights(dtype, device)), checkpoint.card


def read_checkpoint(path: Path, name: str) -> Checkpoint:
    if path.is_dir():
        return read_folder(path)
    return read_gguf(path, name) if path.suffix == ".gguf" else read_llama2c(path)
