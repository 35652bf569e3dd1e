"""Loaders of model files: GGUF, Hugging Face folders and llama2.c files, converted to one layout.

Each format has two modules: one reads the model card, without torch, the other the weights.
"""

from penstock.worker.engine.loaders.errors import ModelUnsupported
from penstock.worker.engine.loaders.load import load, load_card, locate_model

__all__ = ["ModelUnsupported", "load", "load_card", "locate_model"]
