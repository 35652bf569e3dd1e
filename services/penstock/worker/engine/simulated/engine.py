"""The engine that only takes time: the real batch over a step-time law, for capacity work without a GPU."""

import hashlib
import os
from array import array
from collections.abc import Sequence

from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.plan import StepPlan
from penstock.worker.engine.interface import Capacity, SequenceSpec, StepResult
from penstock.worker.engine.sampling.splitmix64 import MASK64, mix64
from penstock.worker.engine.simulated.step_time import StepTimeModel, work_of


class SimulatedEngine:
    """Satisfies `Engine`; never sleeps: `StepResult.duration_s` says what the caller is to wait.

    A token is a function of prompt, seed and position, so a resumed sequence goes on as it would have. It never is an
    end-of-sequence id: every answer has the length asked for.
    """

    def __init__(self, batch: Batch, step_time: StepTimeModel, token_ids: range, crash_token_id: int = -1) -> None:
        """`crash_on`: a token at which the process dies as by a fault in a kernel, to prove what is done then."""
        self.batch = batch
        self._crash_token_id = crash_token_id
        self.step_time = step_time
        self._token_ids = token_ids
        self._keys: dict[int, int] = {}  # of the sequences here

    @property
    def has_work(self) -> bool:
        return self.batch.has_work

    def add(self, spec: SequenceSpec) -> None:
        self.batch.add(spec)
        self._keys[spec.seq_id] = sequence_key(spec)

    def cancel(self, seq_id: int) -> bool:
        return self.batch.cancel(seq_id)

    def capacity(self) -> Capacity:
        return self.batch.capacity()

    def step(self) -> StepResult:
        plan = self.batch.plan()
        if self._crash_token_id >= 0 and any(
            self._crash_token_id in prompt_of(part.sequence.spec) for part in plan.prefills
        ):
            os.abort()
        tokens = [self._token(each.spec.seq_id, len(each.ids)) for each in plan.sampled]
        result = self.batch.commit(plan, tokens, [0.0] * len(tokens))
        result.duration_s = self._duration_s(plan)
        for seq_id in (*(each.seq_id for each in result.finished), *(each.seq_id for each in result.cancelled)):
            del self._keys[seq_id]
        return result

    def _token(self, seq_id: int, position: int) -> int:
        return self._token_ids[mix64(self._keys[seq_id] ^ position) % len(self._token_ids)]

    def _duration_s(self, plan: StepPlan) -> float:
        if not plan.decodes and not plan.prefills:
            return 0.0
        return self.step_time.duration_s(work_of(plan.decodes, plan.prefills))


def prompt_of(spec: SequenceSpec) -> Sequence[int]:
    return spec.token_ids[: len(spec.token_ids) - spec.emitted]


def sequence_key(spec: SequenceSpec) -> int:
    """What a sequence's tokens follow from: its prompt without what earlier runs emitted, and its seed."""
    prompt = array("q", prompt_of(spec))
    salt = (spec.seed & MASK64).to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(prompt.tobytes(), digest_size=8, salt=salt).digest(), "little")
