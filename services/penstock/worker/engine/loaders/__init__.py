"""Loaders of model files: GGUF, Hugging Face folders and llama2.c files, converted to one layout.

`cards` reads the model cards of all formats, without torch. Each format has a module that reads its weights.
"""

from penstock.worker.engine.loaders.errors import ModelUnsupported
from penstock.worker.engine.loaders.load import load, load_card, locate_model

__all__ = ["ModelUnsupported", "load", "load_card", "locate_model"]
