"""Estimators that learn from past tickets: the safety margin, prompt sizes, and output lengths."""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from math import log2

MARGIN_QUANTILE = 0.993  # share of tickets with predictions near their limit that are in time; of all tickets, more are
MARGIN_WINDOW = 384  # latest first tokens that count
MIN_MARGIN_SAMPLES = 64  # first tokens before the margin is learned
MARGIN_UPDATE_INTERVAL = 16  # first tokens between updates of the quantile
MIN_RELEVANT_SHARE = 0.6  # share of the usable limit; smaller predictions say nothing about the margin
INITIAL_USABLE_SHARE = 0.85  # until enough samples are known
MIN_USABLE_SHARE, MAX_USABLE_SHARE = 0.6, 0.93  # bounds, so that a burst or a calm period does not change it too much


@dataclass(slots=True)
class SafetyMargin:
    """The safety margin of one model. Errors are shares of the limit, so that all classes share one margin."""

    usable_share: float = INITIAL_USABLE_SHARE  # share of the TTFT limit that a prediction may take
    _errors: deque[float] = field(default_factory=lambda: deque(maxlen=MARGIN_WINDOW))
    _new_samples: int = 0

    def record(self, predicted: float, realised: float, limit: float) -> None:
        """Record a first token. All times are in s from the arrival of the ticket."""
        if predicted < MIN_RELEVANT_SHARE * self.usable_share * limit:
            return
        self._errors.append((realised - predicted) / limit)
        self._new_samples += 1
        if self._new_samples >= MARGIN_UPDATE_INTERVAL and len(self._errors) >= MIN_MARGIN_SAMPLES:
            self._new_samples = 0
            late = sorted(self._errors)[int(MARGIN_QUANTILE * len(self._errors))]
            self.usable_share = min(MAX_USABLE_SHARE, max(MIN_USABLE_SHARE, 1 - late))


MEAN_PROMPT_GAIN = 1 / 64  # weight of the latest prompt in the mean
BUCKETS_PER_OCTAVE = 2
OCTAVES = 24
MAX_HISTOGRAM_TOKENS = 1 << 20  # tokens; beyond it, all counts are halved


@dataclass(slots=True)
class PromptSizeHistogram:
    """Histogram of prompt sizes in half-octaves, weighted by tokens. Older prompts decay."""

    _tokens: list[float] = field(default_factory=lambda: [0.0] * (BUCKETS_PER_OCTAVE * OCTAVES))
    _total_tokens: float = 0.0
    mean_tokens: float = 0.0

    def record(self, prompt_tokens: int) -> None:
        self._tokens[_bucket_index(prompt_tokens)] += prompt_tokens
        self._total_tokens += prompt_tokens
        self.mean_tokens += (prompt_tokens - self.mean_tokens) * (MEAN_PROMPT_GAIN if self.mean_tokens else 1.0)
        if self._total_tokens > MAX_HISTOGRAM_TOKENS:
            self._tokens = [each / 2 for each in self._tokens]
            self._total_tokens /= 2

    def share_of_shorter(self, prompt_tokens: int) -> float:
        """Return the share of prompt tokens in shorter prompts. Half of the own bucket counts; 0.5 without samples."""
        if not self._total_tokens:
            return 0.5
        own = _bucket_index(prompt_tokens)
        return (sum(self._tokens[:own]) + self._tokens[own] / 2) / self._total_tokens


def _bucket_index(prompt_tokens: int) -> int:
    return (
        min(BUCKETS_PER_OCTAVE * OCTAVES - 1, int(BUCKETS_PER_OCTAVE * log2(prompt_tokens))) if prompt_tokens > 1 else 0
    )


DEFAULT_OUTPUT_TOKENS = 256  # tokens of an answer without any history
MIN_HISTORY_ANSWERS = 4  # answers before a history is used
MIN_HISTORY_GAIN = 1 / 64  # smallest weight of the latest answer: about the latest 64 count
MAX_HISTORIES = 65_536  # histories by model and tenant; the least recently used is deleted


@dataclass(slots=True)
class LengthHistory:
    """Two predictors of output length, the mean length and the mean share of the limit, and their recent errors.

    The mean length is better if the limits of requests say nothing about the answer, the mean share if they do.
    """

    answers: int = 0
    mean_tokens: float = 0.0
    mean_share: float = 0.0  # of max_output_tokens
    mean_error: float = 0.0  # mean absolute error of the mean length, in tokens
    share_error: float = 0.0  # mean absolute error of the mean share, in tokens

    def predict(self, max_output_tokens: int) -> float:
        return (
            self.mean_share * max_output_tokens
            if self.share_error < self.mean_error
            else min(self.mean_tokens, max_output_tokens)
        )

    def record(self, max_output_tokens: int, output_tokens: int) -> None:
        gain = max(MIN_HISTORY_GAIN, 1 / (self.answers + 1))
        if self.answers:
            self.mean_error += gain * (abs(min(self.mean_tokens, max_output_tokens) - output_tokens) - self.mean_error)
            self.share_error += gain * (abs(self.mean_share * max_output_tokens - output_tokens) - self.share_error)
        self.mean_tokens += gain * (output_tokens - self.mean_tokens)
        self.mean_share += gain * (output_tokens / max_output_tokens - self.mean_share)
        self.answers += 1


@dataclass(slots=True)
class OutputLengthPredictor:
    """Predicts output lengths by tenant and model. A new tenant gets the prediction of its model."""

    _by_model: dict[str, LengthHistory] = field(default_factory=dict)
    _by_tenant: OrderedDict[tuple[str, str], LengthHistory] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._by_tenant)

    def predict(self, model: str, tenant_id: str, max_output_tokens: int) -> int:
        """Return the predicted output tokens, from 1 to `max_output_tokens`."""
        histories = self._by_tenant.get((model, tenant_id)), self._by_model.get(model)
        history = next((each for each in histories if each and each.answers >= MIN_HISTORY_ANSWERS), None)
        expected = history.predict(max_output_tokens) if history else DEFAULT_OUTPUT_TOKENS
        return max(1, min(max_output_tokens, round(expected)))

    def record(self, model: str, tenant_id: str, max_output_tokens: int, output_tokens: int) -> None:
        """Record the length of a complete answer and its limit."""
        own = self._by_tenant.setdefault((model, tenant_id), LengthHistory())
        self._by_tenant.move_to_end((model, tenant_id))
        if len(self._by_tenant) > MAX_HISTORIES:
            self._by_tenant.popitem(last=False)
        for history in (own, self._by_model.setdefault(model, LengthHistory())):
            history.record(max_output_tokens, output_tokens)
