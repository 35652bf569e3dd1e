"""The engine that computes: a model in torch, driven step by step."""

import torch

from penstock.worker.engine.batch import Batch, StepPlan
from penstock.worker.engine.inputs import build_inputs
from penstock.worker.engine.interface import Capacity, SequenceSpec, StepResult
from penstock.worker.engine.kv import allocate_kv
from penstock.worker.engine.model import Model
from penstock.worker.engine.sampler import Draw, sample


class TorchEngine:
    """Satisfies `Engine`. The batch decides, the model computes; nothing else is kept here."""

    def __init__(self, model: Model, batch: Batch) -> None:
        self.model = model
        self.batch = batch
        pool = batch.pool
        self._kv = allocate_kv(model.shape, pool.blocks, pool.block_size, model.dtype, model.device)

    @property
    def has_work(self) -> bool:
        return self.batch.has_work

    def add(self, spec: SequenceSpec) -> None:
        self.batch.add(spec)

    def cancel(self, seq_id: int) -> bool:
        return self.batch.cancel(seq_id)

    def capacity(self) -> Capacity:
        return self.batch.capacity()

    def step(self) -> StepResult:
        plan = self.batch.plan()
        tokens, logprobs = self._compute(plan)
        return self.batch.commit(plan, tokens, logprobs)

    @torch.inference_mode()
    def _compute(self, plan: StepPlan) -> tuple[list[int], list[float]]:
        """Forward every slice of the plan and draw the tokens of those that are due one."""
        if not plan.slices:
            return [], []
        inputs = build_inputs(plan, self.batch.pool.block_size, self.model.dtype, self.model.device)
        logits = self.model.forward(inputs, self._kv)
        draws = [
            Draw(each.spec.sampling, each.spec.seed, each.ids, each.prompt_tokens, each.allowed)
            for each in plan.sampled
        ]
        return sample(logits, draws) if draws else ([], [])
