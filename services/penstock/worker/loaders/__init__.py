"""From a model's files to a `Model` and its card: GGUF, Hugging Face folders and llama2.c files, all to one layout."""

from penstock.worker.loaders.checkpoint import ModelUnsupported
from penstock.worker.loaders.load import load, load_card

__all__ = ["ModelUnsupported", "load", "load_card"]
