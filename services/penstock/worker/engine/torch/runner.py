"""Runners: compute the logits of a step's plan, and own the KV cache."""

from typing import Protocol

from torch import Tensor

from penstock.worker.engine.batching.plan import StepPlan
from penstock.worker.engine.torch.inputs import build_inputs
from penstock.worker.engine.torch.kv_cache import allocate_kv
from penstock.worker.engine.torch.model import Model


class Runner(Protocol):
    def forward(self, plan: StepPlan) -> Tensor:
        """Write the K and V of every row; return the logits of the sampled rows: [sampled, vocab_size] float32."""


class TorchRunner:
    """Plain torch, for GPUs without our kernels, and for CPUs and models without a native forward pass."""

    def __init__(self, model: Model, blocks: int, block_size: int) -> None:
        self.model = model
        self._block_size = block_size
        self._kv = allocate_kv(model.shape, blocks, block_size, model.dtype, model.device)

    def forward(self, plan: StepPlan) -> Tensor:
        inputs = build_inputs(plan, self._block_size, self.model.dtype, self.model.device)
        return self.model.forward(inputs, self._kv)
