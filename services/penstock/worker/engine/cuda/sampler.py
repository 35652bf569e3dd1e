"""The sampler on a GPU: one kernel draws the tokens of all rows. It waits for the GPU once, for its results."""

import math
from collections.abc import Sequence
from struct import Struct

import numpy as np
import torch
import triton
from torch import Tensor

from penstock.worker.engine.cuda.kernels.sampling_kernels import adjust_kernel, draw_kernel
from penstock.worker.engine.cuda.token_counts import TokenCounts
from penstock.worker.engine.sampling.draw import MIN_TEMPERATURE, RowDraw

# Of a row: key of the noise (low, high), top_k, whether its logprob is requested, temperature, top_p, log of min_p.
_ROW = Struct("=IIiifff4x")
_WORDS = _ROW.size // 4
_COLUMNS_PER_PROGRAM = 1024
BLOCK = 4096  # scores that a program reads at once
_CUTS = 8  # candidates of a pass over a row; a pass reads the row once and compares each score with all of them


class CudaSampler:
    """Draws the same tokens as the sampler for CPUs, except where rounding decides.

    Penalties and constraints are applied on the GPU, to a copy of the logits. It never sorts.
    """

    def __init__(self, slots: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._token_counts = TokenCounts(slots, vocab_size, device)

    def sample(self, logits: Tensor, draws: Sequence[RowDraw]) -> tuple[list[int], list[float]]:
        """Like `sampler.sample`. logits: [rows, vocab_size] float32, contiguous"""
        rows = len(draws)
        scores = self._adjusted(logits, draws) if any(draw.is_adjusted for draw in draws) else logits
        words = self._to_device(torch.frombuffer(bytearray(b"".join(map(_packed, draws))), dtype=torch.int32))
        out = torch.empty(2, rows, dtype=torch.int32, device=self._device)
        draw_kernel[rows,](
            *(logits, scores, words, out, rows),
            VOCAB=self._vocab_size,
            BLOCK=min(BLOCK, triton.next_power_of_2(self._vocab_size)),
            CUTS=_CUTS,
            WORDS=_WORDS,
            num_warps=16,
        )
        tokens, logprobs = out.cpu()
        return tokens.tolist(), logprobs.view(torch.float32).tolist()

    def _adjusted(self, logits: Tensor, draws: Sequence[RowDraw]) -> Tensor:
        """Return the logits of all rows after penalties, constraints and biases."""
        rows = len(draws)
        scores = torch.empty_like(logits)
        masks, mask_rows = self._masks(draws)
        penalties = [
            (draw.params.repetition_penalty or 1.0, draw.params.presence_penalty, draw.params.frequency_penalty)
            for draw in draws
        ]
        adjust_kernel[rows, triton.cdiv(self._vocab_size, _COLUMNS_PER_PROGRAM)](
            *(logits, scores, self._token_counts.counts, self._ints(self._count_rows(draws))),
            *(self._to_device(torch.tensor(penalties, dtype=torch.float64)), masks, mask_rows),
            VOCAB=self._vocab_size,
            COLUMNS=_COLUMNS_PER_PROGRAM,
        )
        self._add_biases(scores, draws)
        return scores

    def _count_rows(self, draws: Sequence[RowDraw]) -> list[int]:
        """Return the row of each draw in the counts; -1 if no penalty needs it."""
        counted = [row for row, draw in enumerate(draws) if draw.counts_tokens]
        count_rows = [-1] * len(draws)
        for row, count_row in zip(counted, self._token_counts.update([draws[row] for row in counted]), strict=True):
            count_rows[row] = count_row
        return count_rows

    def _masks(self, draws: Sequence[RowDraw]) -> tuple[Tensor, Tensor]:
        """Return the allowed ids of constrained rows, [constrained, vocab_size] int8, and the row of each draw."""
        mask_rows = [-1] * len(draws)
        constrained = [(row, draw.allowed) for row, draw in enumerate(draws) if draw.allowed is not None]
        masks = torch.zeros(max(1, len(constrained)), self._vocab_size, dtype=torch.int8)
        for mask_row, (row, allowed) in enumerate(constrained):
            mask_rows[row] = mask_row
            if isinstance(allowed, np.ndarray):
                masks[mask_row] = torch.from_numpy(allowed)
            else:
                masks[mask_row, list(allowed)] = 1
        return self._to_device(masks), self._ints(mask_rows)

    def _add_biases(self, scores: Tensor, draws: Sequence[RowDraw]) -> None:
        biased = [
            (row * self._vocab_size + token, bias)
            for row, draw in enumerate(draws)
            for token, bias in draw.params.logit_bias
        ]
        if biased:
            places, biases = zip(*biased, strict=True)
            added = self._to_device(torch.tensor(biases, dtype=torch.float32))
            scores.view(-1).index_add_(0, self._to_device(torch.tensor(places)), added)

    def _ints(self, values: Sequence[int]) -> Tensor:
        return self._to_device(torch.tensor(values, dtype=torch.int32))

    def _to_device(self, values: Tensor) -> Tensor:
        """Copy from pinned memory, because a copy from other memory would wait for all queued work of the GPU."""
        return (values.pin_memory() if self._device.type == "cuda" else values).to(self._device, non_blocking=True)


def _packed(draw: RowDraw) -> bytes:
    params, key = draw.params, draw.key
    temperature = max(params.temperature, MIN_TEMPERATURE) if params.temperature > 0 else 0.0
    min_p = math.log(params.min_p) if params.min_p > 0 else -math.inf
    low, high = key & 0xFFFFFFFF, key >> 32
    return _ROW.pack(low, high, params.top_k, params.logprobs, temperature, params.top_p, min_p)
