"""How fast the engine is, as its scheduler needs to know it. Knows no clock."""

from dataclasses import dataclass

from penstock.worker.engine.interface import StepResult

MEMORY = 0.9  # share of what was known that a step keeps: about the last 10 steps count


@dataclass(slots=True)
class Pace:
    """Smoothed over steps that computed something; time in which the engine had nothing to do does not count."""

    step_time: float | None = None  # s; None before the first step
    prefill_tokens_per_second: float = 0.0  # in steps that prefill, beside whatever else they compute
    _tokens_per_step: float = 0.0
    _prefill_tokens: float = 0.0  # of a step that prefills
    _prefill_time: float = 0.0  # s, of such a step

    @property
    def tokens_per_second(self) -> float:
        return self._tokens_per_step / self.step_time if self.step_time else 0.0

    def note(self, result: StepResult, took: float) -> None:
        tokens = result.prefill_tokens + result.decode_seqs
        if not tokens or took <= 0:
            return
        keep = 0.0 if self.step_time is None else MEMORY
        self.step_time = keep * (self.step_time or 0.0) + (1 - keep) * took
        # Tokens and time are smoothed apart: a mean of quotients would let short steps count as much as long ones.
        self._tokens_per_step = keep * self._tokens_per_step + (1 - keep) * tokens
        if result.prefill_tokens:
            self._note_prefill(result.prefill_tokens, took)

    def _note_prefill(self, tokens: int, took: float) -> None:
        self._prefill_tokens = MEMORY * self._prefill_tokens + tokens
        self._prefill_time = MEMORY * self._prefill_time + took
        self.prefill_tokens_per_second = self._prefill_tokens / self._prefill_time
