"""The torch engine: runs a model step by step."""

import torch

from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.plan import StepPlan
from penstock.worker.engine.interface import Capacity, SequenceSpec, StepResult
from penstock.worker.engine.sampling.draw import RowDraw
from penstock.worker.engine.sampling.sampler import sample
from penstock.worker.engine.torch.runner import Runner


class TorchEngine:
    """Satisfies `Engine`. The batch plans each step and the runner computes it."""

    def __init__(self, runner: Runner, batch: Batch) -> None:
        self.runner = runner
        self.batch = batch

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
        """Compute all slices of the plan and draw a token for each sampled sequence."""
        if not plan.slices:
            return [], []
        logits = self.runner.forward(plan)
        draws = [
            RowDraw(each.spec.sampling, each.spec.seed, each.ids, each.prompt_tokens, each.allowed)
            for each in plan.sampled
        ]
        return sample(logits, draws) if draws else ([], [])
