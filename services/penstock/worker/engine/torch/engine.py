"""The torch engine, which runs a model step by step, and its runner, which computes the logits of a plan."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.errors import EmbeddingUnsupported
from penstock.worker.engine.batching.sequence import StepPlan
from penstock.worker.engine.grammar.forms import FormSequences
from penstock.worker.engine.interface import Capacity, SequenceSpec, StepResult
from penstock.worker.engine.sampling.draw import RowDraw
from penstock.worker.engine.sampling.likeliest import likeliest_tokens
from penstock.worker.engine.sampling.sampler import sample
from penstock.worker.engine.torch.inputs import build_inputs
from penstock.worker.engine.torch.kv_cache import allocate_kv
from penstock.worker.engine.torch.model import Model
from penstock.worker.engine.torch.pooler import Pooler

Sampler = Callable[[Tensor, Sequence[RowDraw]], tuple[list[int], list[float]]]  # as `sampler.sample`


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

    def forward_hidden(self, plan: StepPlan, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        inputs = build_inputs(plan, self._block_size, self.model.dtype, self.model.device)
        return self.model.forward_hidden(
            inputs, self._kv, torch.tensor(rows, dtype=torch.int64, device=self.model.device)
        )


class TorchEngine:
    """Satisfies `Engine`. The batch plans each step, the runner computes it and the sampler draws its tokens.

    `forms`: of the model, for sequences whose output has a form. None: such sequences are rejected.
    `pooler`: of the runner, for sequences that embed. None: such sequences are rejected.
    """

    def __init__(
        self,
        runner: Runner,
        batch: Batch,
        sampler: Sampler = sample,
        forms: FormSequences | None = None,
        pooler: Pooler | None = None,
    ) -> None:
        self.runner = runner
        self.batch = batch
        self._sample = sampler
        self._forms = forms or FormSequences(None)
        self._pooler = pooler

    @property
    def has_work(self) -> bool:
        return self.batch.has_work or self._forms.has_work

    def add(self, spec: SequenceSpec) -> None:
        if spec.embeds:
            self._add_embedding(spec)
        elif self._forms.handles(spec):
            self.batch.check(spec)
            self._forms.add(spec, spec.end_ids(self.batch.eos_ids))
        else:
            self.batch.add(spec)

    def _add_embedding(self, spec: SequenceSpec) -> None:
        if self._pooler is None:
            raise EmbeddingUnsupported("this engine computes no embeddings")
        # A shared prefix has K and V in the cache, but no hidden states, which a mean needs.
        self.batch.add(spec if self._pooler.allows_shared_prefix else replace(spec, cache_salt=b""))

    def cancel(self, seq_id: int) -> bool:
        if self._pooler:
            self._pooler.cancel(seq_id)
        return self._forms.cancel(seq_id) or self.batch.cancel(seq_id)

    def capacity(self) -> Capacity:
        return self.batch.capacity()

    def step(self) -> StepResult:
        if not self.batch.has_work:
            self._forms.wait()
        for spec, mask in self._forms.pop_compiled():
            self.batch.add(spec, mask)
        plan = self.batch.plan()
        return self._forms.report(plan.sampled, self.batch.commit(plan, *self._compute(plan)))

    @torch.inference_mode()
    def _compute(self, plan: StepPlan) -> tuple[list[int], list[float], list[bytes]]:
        """Compute all slices of the plan, draw a token for each sampled sequence, and pool the embedded ones."""
        embeddings: list[bytes] = []
        if not plan.slices:
            return [], [], embeddings
        with self._forms.masking(plan.sampled):
            if self._pooler and self._pooler.is_needed(plan):
                logits, embeddings = self._pooler.forward(plan)
            else:
                logits = self.runner.forward(plan)
        draws = [
            RowDraw(each.spec.sampling, each.spec.seed, each.ids, each.prompt_tokens, each.allowed)
            for each in plan.sampled
        ]
        if not draws:
            return [], [], embeddings
        plan.result.likeliest = likeliest_tokens(logits, draws)
        tokens, logprobs = self._sample(logits, draws)
        return tokens, logprobs, embeddings
