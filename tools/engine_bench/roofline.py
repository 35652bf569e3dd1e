"""The roofline of a bench cell: of a decode step in the middle of its run."""

from pathlib import Path

import torch

from engine_bench.cells import BenchCell
from penstock.proofs.engine.throughput import StepWork, step_work
from penstock.worker.engine.loaders.load import locate_model
from penstock.worker.engine.loaders.load_model import read_checkpoint
from penstock.worker.engine.torch.weights import ModelShape

DTYPES = ("bfloat16", "float32")


def read_shape(folder: Path) -> ModelShape:
    """Return the shape of the checkpoint in a Hugging Face folder."""
    return read_checkpoint(*locate_model(str(folder))).shape


def cell_work(shape: ModelShape, dtype: str, cell: BenchCell) -> StepWork:
    return step_work(shape, getattr(torch, dtype), cell.concurrency, cell.mid_run_context)
