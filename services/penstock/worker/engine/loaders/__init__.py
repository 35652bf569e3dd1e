"""From a model's files to a `Model` and its card: GGUF, Hugging Face folders and llama2.c files, all to one layout.

Each format is read in two halves: its card, without torch, and its weights.
"""

from penstock.worker.engine.loaders.errors import ModelUnsupported
from penstock.worker.engine.loaders.load import load, load_card, locate_model

__all__ = ["ModelUnsupported", "load", "load_card", "locate_model"]
