"""The least time that a decode step can take on this machine: what it reads and multiplies, over what was measured."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_bench.cells import BenchCell

DTYPE_BYTES = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class StepWork:
    bytes_read: int  # bytes: every matrix once, and the K and V of every position
    flops: int  # two for each weight and row; attention's own are few beside them


def read_config(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))


def step_work(config: dict[str, Any], dtype: str, cell: BenchCell) -> StepWork:
    """Of a step in the middle of the cell. An untied embedding is a lookup of a row per sequence: not counted.

    config: as a Hugging Face folder has it.
    """
    dim, layers = config["hidden_size"], config["num_hidden_layers"]
    kv_dim = config["num_key_value_heads"] * config["head_dim"]
    q_dim = config["num_attention_heads"] * config["head_dim"]
    layer = 2 * dim * q_dim + 2 * dim * kv_dim + 3 * dim * config["intermediate_size"]
    weights = layers * layer + config["vocab_size"] * dim
    kv = cell.concurrency * cell.mid_run_context * layers * 2 * kv_dim
    return StepWork(bytes_read=(weights + kv) * DTYPE_BYTES[dtype], flops=2 * weights * cell.concurrency)


def roofline_ms(work: StepWork, *, bytes_per_s: float, flops_per_s: float) -> float:
    """Source: Williams, Waterman, Patterson 2009 (Roofline), with the two parts overlapping fully."""
    return 1000 * max(work.bytes_read / bytes_per_s, work.flops / flops_per_s)
