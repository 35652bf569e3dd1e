"""A logits processor for vLLM: penalties over tokens of earlier runs, and constraints that vLLM does not have.

For vLLM the tokens of earlier runs are prompt, which its own penalties ignore. Loads vLLM.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import LogitsProcessor, process_dict_updates

from penstock.worker.engine.batching.masks import TokenMask, build_mask
from penstock.worker.engine.vllm.params import EXTRA_ARGS_KEY, ExtraParams


@dataclass(slots=True)
class _Row:
    extra: ExtraParams
    earlier_output: list[int]  # emitted by earlier runs
    new_output: list[int]  # vLLM's own list, to which it appends
    mask: TokenMask | None

    @property
    def output(self) -> list[int]:
        return [*self.earlier_output, *self.new_output]


class OutputLogitsProcessor(LogitsProcessor):  # type: ignore[misc]  # vLLM is no dependency of ours
    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, _Row] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        process_dict_updates(self._rows, batch_update, _row)

    def apply(self, logits: Tensor) -> Tensor:
        """logits: [sequences, vocab_size], changed in place."""
        for index, row in self._rows.items():
            _penalise(logits[index], row)
            if row.mask is not None:
                _apply_mask(logits[index], row.mask.allowed(row.output))
        return logits


def _row(params: Any, prompt: list[int] | None, output: list[int]) -> _Row | None:
    extra: ExtraParams | None = (params.extra_args or {}).get(EXTRA_ARGS_KEY)
    if extra is None:
        return None
    before = list(prompt or ())[-extra.emitted :] if extra.emitted else []
    mask = build_mask(extra.choices, extra.end_ids) if extra.choices else extra.mask
    return _Row(extra, before, output, mask)


def _penalise(scores: Tensor, row: _Row) -> None:
    if not (row.extra.presence_penalty or row.extra.frequency_penalty):
        return
    if counts := Counter(row.output):
        ids = torch.tensor(list(counts), device=scores.device)
        times = torch.tensor(list(counts.values()), device=scores.device)
        scores[ids] -= row.extra.presence_penalty + row.extra.frequency_penalty * times


def _apply_mask(scores: Tensor, allowed: Any) -> None:
    if isinstance(allowed, np.ndarray):
        scores.masked_fill_(torch.from_numpy(~allowed).to(scores.device), -torch.inf)
    elif allowed is not None:
        masked = torch.full_like(scores, -torch.inf)
        ids = torch.tensor(list(allowed), device=scores.device)
        masked[ids] = scores[ids]
        scores.copy_(masked)
