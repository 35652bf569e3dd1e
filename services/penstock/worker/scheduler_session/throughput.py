"""How fast the engine is, as its scheduler needs to know it. Knows no clock."""

from dataclasses import dataclass, field

from penstock.worker.engine.interface import StepResult

EWMA_KEPT_SHARE = 0.9  # share of what was known that a step keeps: about the last 10 steps count
SLOPE_WINDOW_STEPS = 128  # steps
MIN_SLOPE_GAIN = (
    1 / SLOPE_WINDOW_STEPS
)  # gain of a slope; it is the engine's own, so that it may be learnt for longer than a pace
MIN_SLOPE_STEPS = 8  # steps before a slope counts
MIN_RELATIVE_DEVIATION = (
    0.2  # of the mean, that steps have to differ by: a line through points that are all alike may lie anyhow
)


@dataclass(slots=True)
class PrefillTimeSlope:
    """By how much a step is longer for each prompt token in it: a line of least squares, older steps fading."""

    _steps: int = 0
    _mean_tokens: float = 0.0  # mean of a step
    _mean_duration_s: float = 0.0  # s, likewise
    _variance: float = 0.0  # of tokens
    _covariance: float = 0.0

    def record(self, tokens: int, duration_s: float) -> None:
        self._steps += 1
        gain = 1 / self._steps if self._steps < SLOPE_WINDOW_STEPS else MIN_SLOPE_GAIN
        more, longer = tokens - self._mean_tokens, duration_s - self._mean_duration_s
        self._mean_tokens += gain * more
        self._mean_duration_s += gain * longer
        self._variance = (1 - gain) * (self._variance + gain * more * more)
        self._covariance = (1 - gain) * (self._covariance + gain * more * longer)

    @property
    def seconds_per_token(self) -> float:
        """At least 0 and at most what leaves nothing of a mean step; 0: not known yet."""
        if self._steps < MIN_SLOPE_STEPS or self._variance <= (MIN_RELATIVE_DEVIATION * self._mean_tokens) ** 2:
            return 0.0
        return min(max(0.0, self._covariance / self._variance), self._mean_duration_s / self._mean_tokens)


@dataclass(slots=True)
class EngineThroughput:
    """Smoothed over steps that computed something; time in which the engine had nothing to do does not count."""

    step_time: float | None = None  # s; None before the first step
    prefill_tokens_per_second: float = 0.0  # in steps that prefill, beside whatever else they compute
    steps: int = 0
    max_step_tokens: int = 0  # of any step
    _prefill_slope: PrefillTimeSlope = field(default_factory=PrefillTimeSlope)
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
        return self._prefill_slope.seconds_per_token

    @property
    def decode_step_time(self) -> float | None:
        """Return the s of a step that prefills nothing, at the batch as it was of late."""
        if self.step_time is None:
            return None
        return max(0.0, self.step_time - self.prefill_token_time * self._prefill_per_step)

    def record(self, result: StepResult, duration_s: float) -> None:
        tokens = result.prefill_tokens + result.decode_seqs
        if not tokens or duration_s <= 0:
            return
        prefill, keep = result.prefill_tokens, 0.0 if self.step_time is None else EWMA_KEPT_SHARE
        gain = 1 - keep
        self.steps += 1
        self.max_step_tokens = max(self.max_step_tokens, tokens)
        self.step_time = keep * (self.step_time or 0.0) + gain * duration_s
        # Tokens and time are smoothed apart: a mean of quotients would let short steps count as much as long ones.
        self._tokens_per_step = keep * self._tokens_per_step + gain * tokens
        self._prefill_per_step = keep * self._prefill_per_step + gain * prefill
        self._prefill_slope.record(prefill, duration_s)
        if prefill:
            self._record_prefill(prefill, duration_s)

    def _record_prefill(self, tokens: int, duration_s: float) -> None:
        self._prefill_tokens = EWMA_KEPT_SHARE * self._prefill_tokens + tokens
        self._prefill_time = EWMA_KEPT_SHARE * self._prefill_time + duration_s
        self.prefill_tokens_per_second = self._prefill_tokens / self._prefill_time
