"""How fast the engine is, as its scheduler needs to know it. Knows no clock."""

from dataclasses import dataclass, field

from penstock.worker.engine.interface import StepResult

MEMORY = 0.9  # share of what was known that a step keeps: about the last 10 steps count
SLOWEST_AFTER = 128  # steps
SLOWEST = 1 / SLOWEST_AFTER  # gain of a slope; it is the engine's own, so that it may be learnt for longer than a pace
ENOUGH = 8  # steps before a slope counts
SPREAD = 0.2  # of the mean, that steps have to differ by: a line through points that are all alike may lie anyhow


@dataclass(slots=True)
class Slope:
    """By how much a step is longer for each prompt token in it: a line of least squares, older steps fading."""

    _steps: int = 0
    _tokens: float = 0.0  # mean of a step
    _took: float = 0.0  # s, likewise
    _variance: float = 0.0  # of tokens
    _covariance: float = 0.0

    def note(self, tokens: int, took: float) -> None:
        self._steps += 1
        gain = 1 / self._steps if self._steps < SLOWEST_AFTER else SLOWEST
        more, longer = tokens - self._tokens, took - self._took
        self._tokens += gain * more
        self._took += gain * longer
        self._variance = (1 - gain) * (self._variance + gain * more * more)
        self._covariance = (1 - gain) * (self._covariance + gain * more * longer)

    @property
    def seconds(self) -> float:
        """At least 0 and at most what leaves nothing of a mean step; 0: not known yet."""
        if self._steps < ENOUGH or self._variance <= (SPREAD * self._tokens) ** 2:
            return 0.0
        return min(max(0.0, self._covariance / self._variance), self._took / self._tokens)


@dataclass(slots=True)
class Pace:
    """Smoothed over steps that computed something; time in which the engine had nothing to do does not count."""

    step_time: float | None = None  # s; None before the first step
    prefill_tokens_per_second: float = 0.0  # in steps that prefill, beside whatever else they compute
    steps: int = 0
    most_tokens: int = 0  # of any step
    _slope: Slope = field(default_factory=Slope)
    _tokens_per_step: float = 0.0
    _prefill_per_step: float = 0.0  # tokens
    _prefill_tokens: float = 0.0  # of a step that prefills
    _prefill_time: float = 0.0  # s, of such a step

    @property
    def tokens_per_second(self) -> float:
        return self._tokens_per_step / self.step_time if self.step_time else 0.0

    @property
    def prefill_token_time(self) -> float:
        """Return the s by which a prompt token makes a step longer; 0: not known yet."""
        return self._slope.seconds

    @property
    def decode_step_time(self) -> float | None:
        """Return the s of a step that prefills nothing, at the batch as it was of late."""
        if self.step_time is None:
            return None
        return max(0.0, self.step_time - self.prefill_token_time * self._prefill_per_step)

    def note(self, result: StepResult, took: float) -> None:
        tokens = result.prefill_tokens + result.decode_seqs
        if not tokens or took <= 0:
            return
        prefill, keep = result.prefill_tokens, 0.0 if self.step_time is None else MEMORY
        gain = 1 - keep
        self.steps += 1
        self.most_tokens = max(self.most_tokens, tokens)
        self.step_time = keep * (self.step_time or 0.0) + gain * took
        # Tokens and time are smoothed apart: a mean of quotients would let short steps count as much as long ones.
        self._tokens_per_step = keep * self._tokens_per_step + gain * tokens
        self._prefill_per_step = keep * self._prefill_per_step + gain * prefill
        self._slope.note(prefill, took)
        if prefill:
            self._note_prefill(prefill, took)

    def _note_prefill(self, tokens: int, took: float) -> None:
        self._prefill_tokens = MEMORY * self._prefill_tokens + tokens
        self._prefill_time = MEMORY * self._prefill_time + took
        self.prefill_tokens_per_second = self._prefill_tokens / self._prefill_time
