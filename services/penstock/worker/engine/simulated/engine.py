"""The simulated engine: the real batch with modelled step times, for capacity planning without a GPU."""

import hashlib
import os
from array import array
from collections.abc import Sequence

from penstock.worker.engine.batching.batch import Batch
from penstock.worker.engine.batching.sequence import StepPlan
from penstock.worker.engine.interface import Capacity, LikeliestTokens, SequenceSpec, StepResult
from penstock.worker.engine.sampling.splitmix64 import MASK64, mix64
from penstock.worker.engine.simulated.step_time import StepTimeModel, work_of


class SimulatedEngine:
    """Satisfies `Engine`. It never sleeps; the caller waits for `StepResult.duration_s`.

    A token is a function of weights, prompt, seed and position, so a sequence that another engine with the
    same weights resumes continues with the same tokens. No token is an end-of-sequence id, so every output has the
    requested length.
    """

    def __init__(
        self,
        batch: Batch,
        step_time: StepTimeModel,
        token_ids: range,
        crash_token_id: int = -1,
        *,
        salt: bytes = b"",
    ) -> None:
        """`crash_token_id` in a prompt aborts the process like a fault in a kernel, to test quarantine; -1: none.

        `salt` stands for the weights, at most 16 bytes: engines with another salt make other tokens.
        """
        self.batch = batch
        self._salt = salt
        self._crash_token_id = crash_token_id
        self.step_time = step_time
        self._token_ids = token_ids
        self._keys: dict[int, int] = {}  # `sequence_key` by seq_id

    @property
    def has_work(self) -> bool:
        return self.batch.has_work

    def add(self, spec: SequenceSpec) -> None:
        self.batch.add(spec)
        self._keys[spec.seq_id] = sequence_key(spec, self._salt)

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
        plan.result.likeliest = self._likeliest(plan, tokens)
        result = self.batch.commit(plan, tokens, [0.0] * len(tokens))
        result.duration_s = self._duration_s(plan)
        for seq_id in (*(each.seq_id for each in result.finished), *(each.seq_id for each in result.cancelled)):
            del self._keys[seq_id]
        return result

    def _token(self, seq_id: int, position: int) -> int:
        return self._token_ids[mix64(self._keys[seq_id] ^ position) % len(self._token_ids)]

    def _likeliest(self, plan: StepPlan, tokens: Sequence[int]) -> dict[int, LikeliestTokens]:
        """Return the drawn token and the ids after it, of equal scores, as a simulated model has none."""
        ids, found = self._token_ids, {}
        for place, (each, token) in enumerate(zip(plan.sampled, tokens, strict=True)):
            if count := each.spec.sampling.top_logprobs:
                first = ids.index(token)
                found[place] = LikeliestTokens([ids[(first + n) % len(ids)] for n in range(count)], [0.0] * count)
        return found

    def _duration_s(self, plan: StepPlan) -> float:
        if not plan.decodes and not plan.prefills:
            return 0.0
        return self.step_time.duration_s(work_of(plan.decodes, plan.prefills))


def prompt_of(spec: SequenceSpec) -> Sequence[int]:
    return spec.token_ids[: len(spec.token_ids) - spec.emitted]


def sequence_key(spec: SequenceSpec, salt: bytes = b"") -> int:
    """Key of a sequence's tokens: a digest of its prompt, without emitted tokens, its seed and the engine's salt."""
    prompt = array("q", prompt_of(spec)).tobytes()
    seed = (spec.seed & MASK64).to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(prompt, digest_size=8, salt=seed, person=salt).digest(), "little")
