"""The tokens that sequences with penalties have, counted on the GPU."""

from array import array
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from penstock.worker.engine.cuda.resident import Resident, ResidentLists
from penstock.worker.engine.sampling.draw import RowDraw

_IN_PROMPT, _IN_OUTPUT = 1, 2


class TokenCounts:
    """Twice the number of occurrences of each token in the output, plus 1 if the prompt has it: [slots, vocab_size].

    A step sends the tokens that are new since the last one. The prompt counts for the repetition penalty alone, so that
    of other sequences is left out.
    """

    def __init__(self, slots: int, vocab_size: int, device: torch.device) -> None:
        self.counts = torch.zeros(slots, vocab_size, dtype=torch.int32, device=device)
        self._lists = ResidentLists(slots)

    def update(self, draws: Sequence[RowDraw]) -> list[int]:
        """Count the new tokens of these sequences; return the row of each."""
        residents = self._lists.assign([draw.ids for draw in draws])
        new_rows, places, amounts = array("q"), array("q"), array("q")
        for draw, resident in zip(draws, residents, strict=True):
            start = resident.row * self.counts.shape[1]
            if not resident.sent:
                new_rows.append(resident.row)
                self._add_prompt(draw, resident, start, places, amounts)
            output = draw.ids[resident.sent :]
            places.extend([start + token for token in output])
            amounts.extend([_IN_OUTPUT] * len(output))
            resident.sent = len(draw.ids)
        if new_rows:
            self.counts.index_fill_(0, self._to_device(new_rows), 0)
        if places:
            changes = self._to_device(places + amounts).view(2, -1)
            self.counts.view(-1).index_add_(0, changes[0], changes[1].int())
        return [resident.row for resident in residents]

    @staticmethod
    def _add_prompt(draw: RowDraw, resident: Resident, start: int, places: "array[int]", amounts: "array[int]") -> None:
        if draw.params.repetition_penalty not in {0.0, 1.0}:
            seen = np.unique(np.array(draw.ids[: draw.prompt_tokens], dtype=np.int64))
            places.frombytes((seen + start).tobytes())
            amounts.extend([_IN_PROMPT] * len(seen))
        resident.sent = draw.prompt_tokens

    def _to_device(self, values: "array[int]") -> Tensor:
        staged = torch.frombuffer(values, dtype=torch.int64)
        device = self.counts.device
        return (staged.pin_memory() if device.type == "cuda" else staged).to(device, non_blocking=True)
