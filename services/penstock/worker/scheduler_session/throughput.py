"""Throughput of the engine, smoothed over steps. Knows no clock."""

from dataclasses import dataclass, field

from penstock.worker.engine.interface import StepResult

EWMA_KEPT_SHARE = 0.9  # share of the old value that a step keeps, so that about the last 10 steps count
SLOPE_WINDOW_STEPS = 128  # longer than for the other figures, as the slope depends on the engine and not on its load
MIN_SLOPE_GAIN = 1 / SLOPE_WINDOW_STEPS
MIN_SLOPE_STEPS = 8  # steps before the slope is used
MIN_RELATIVE_DEVIATION = 0.2  # of the tokens per step; the slope through nearly equal points is arbitrary


@dataclass(slots=True)
class PrefillTimeSlope:
    """Time that a prompt token adds to a step: the slope of a least-squares line with exponential decay."""

    _steps: int = 0
    _mean_tokens: float = 0.0
    _mean_duration_s: float = 0.0
    _variance: float = 0.0  # of tokens
    _covariance: float = 0.0

    def record(self, tokens: int, duration_s: float) -> None:
        self._steps += 1
        gain = 1 / self._steps if self._steps < SLOPE_WINDOW_STEPS else MIN_SLOPE_GAIN
        token_delta, duration_delta = tokens - self._mean_tokens, duration_s - self._mean_duration_s
        self._mean_tokens += gain * token_delta
        self._mean_duration_s += gain * duration_delta
        self._variance = (1 - gain) * (self._variance + gain * token_delta * token_delta)
        self._covariance = (1 - gain) * (self._covariance + gain * token_delta * duration_delta)

    @property
    def seconds_per_token(self) -> float:
        """Slope in s, from 0 to the mean duration per mean token; 0 if it is not known yet."""
        if self._steps < MIN_SLOPE_STEPS or self._variance <= (MIN_RELATIVE_DEVIATION * self._mean_tokens) ** 2:
            return 0.0
        return min(max(0.0, self._covariance / self._variance), self._mean_duration_s / self._mean_tokens)


@dataclass(slots=True)
class EngineThroughput:
    """Figures smoothed over steps that computed tokens; idle time does not count."""

    step_time: float | None = None  # s; None before the first step
    prefill_tokens_per_second: float = 0.0  # in steps with prefills, which may also decode
    steps: int = 0
    busy_s: float = 0.0  # of all steps
    max_step_tokens: int = 0  # maximum of all steps
    _prefill_slope: PrefillTimeSlope = field(default_factory=PrefillTimeSlope)
    _tokens_per_step: float = 0.0
    _prefill_per_step: float = 0.0  # tokens
    _prefill_tokens: float = 0.0  # decayed sum over steps with prefills
    _prefill_time: float = 0.0  # s, decayed sum over the same steps

    @property
    def tokens_per_second(self) -> float:
        return self._tokens_per_step / self.step_time if self.step_time else 0.0

    @property
    def prefill_token_time(self) -> float:
        """Time in s that a prompt token adds to a step; 0 if it is not known yet."""
        return self._prefill_slope.seconds_per_token

    @property
    def decode_step_time(self) -> float | None:
        """Time in s of a step without prefills, at the recent batch size; None before the first step."""
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
        self.busy_s += duration_s
        self.max_step_tokens = max(self.max_step_tokens, tokens)
        self.step_time = keep * (self.step_time or 0.0) + gain * duration_s
        # Tokens and time are smoothed separately, as a mean of quotients would weight short steps like long ones.
        self._tokens_per_step = keep * self._tokens_per_step + gain * tokens
        self._prefill_per_step = keep * self._prefill_per_step + gain * prefill
        self._prefill_slope.record(prefill, duration_s)
        if prefill:
            self._record_prefill(prefill, duration_s)

    def _record_prefill(self, tokens: int, duration_s: float) -> None:
        self._prefill_tokens = EWMA_KEPT_SHARE * self._prefill_tokens + tokens
        self._prefill_time = EWMA_KEPT_SHARE * self._prefill_time + duration_s
        self.prefill_tokens_per_second = self._prefill_tokens / self._prefill_time
