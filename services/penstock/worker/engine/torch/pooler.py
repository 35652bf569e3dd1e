"""Pooling: the hidden states of a prompt, chunk by chunk, become its embedding."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import normalize

from penstock.worker.engine.batching.sequence import Slice, StepPlan
from penstock.worker.engine.interface import Pooling


@runtime_checkable
class EmbeddingRunner(Protocol):
    """A runner that can return hidden states, too."""

    def forward_hidden(self, plan: StepPlan, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Compute a plan as `Runner.forward` does.

        Return the logits of the sampled rows, [sampled, vocab_size] float32, and the states of `rows` of the plan after
        the final norm, [rows, dim] float32.
        """


class Pooler:
    """Computes steps with prompts to embed. Keeps the sum of the states of each prompt that is computed in part."""

    def __init__(self, runner: EmbeddingRunner, pooling: Pooling) -> None:
        self._runner = runner
        self._pooling = pooling
        self._sums: dict[int, Tensor] = {}  # by seq_id: [dim] float32, over the chunks so far; empty unless MEAN

    @property
    def allows_shared_prefix(self) -> bool:
        """Whether an embedding needs no state of a prefix whose K and V are in the cache."""
        return self._pooling is Pooling.LAST

    def is_needed(self, plan: StepPlan) -> bool:
        """Whether the plan has a prompt to embed."""
        return any(part.sequence.spec.embeds for part in plan.prefills)

    def cancel(self, seq_id: int) -> None:
        self._sums.pop(seq_id, None)

    def forward(self, plan: StepPlan) -> tuple[Tensor, list[bytes]]:
        """Compute a plan. Return the logits of the sampled rows, and the embedding of each of `plan.embedded`."""
        rows: list[int] = []
        parts: list[Slice] = []
        end = len(plan.decodes)
        for part in plan.prefills:
            end += part.count
            if part.sequence.spec.embeds:
                rows += range(end - self._pooled_rows(part), end)
                parts.append(part)
        logits, hidden = self._runner.forward_hidden(plan, rows)
        states = torch.split(hidden, [self._pooled_rows(part) for part in parts])
        sums = [self._add(part, chunk) for part, chunk in zip(parts, states, strict=True)]
        return logits, _embeddings([total for part, total in zip(parts, sums, strict=True) if part.is_last])

    def _pooled_rows(self, part: Slice) -> int:
        """Return how many of the last rows of a slice are pooled."""
        if self._pooling is Pooling.MEAN:
            return part.count
        return 1 if part.is_last else 0

    def _add(self, part: Slice, states: Tensor) -> Tensor:
        """Return the sum of a prompt's states up to the end of a slice: [dim] float32. `states`: of the slice."""
        total = states.sum(0)
        before = self._sums.pop(part.sequence.spec.seq_id, None)
        if before is not None and part.start:  # a preempted sequence begins again at position 0
            total += before
        if self._pooling is Pooling.MEAN and not part.is_last:
            self._sums[part.sequence.spec.seq_id] = total
        return total


def _embeddings(sums: list[Tensor]) -> list[bytes]:
    """Scale vectors to length 1, which takes a sum to the embedding that its mean has."""
    if not sums:
        return []
    return [row.tobytes() for row in normalize(torch.stack(sums)).cpu().numpy().astype("<f4", copy=False)]
