"""How much of a promise a prediction may take, learnt from how far first tokens came after what was predicted."""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from math import log2

MARGIN_QUANTILE = (
    0.993  # of tickets at the edge of their promise that are to be in time; of all that are let in, more are
)
MARGIN_WINDOW = 384  # first tokens that count
MIN_MARGIN_SAMPLES = 64  # of them before they do
MARGIN_UPDATE_INTERVAL = 16  # first tokens after which the quantile is taken anew
MIN_RELEVANT_SHARE = (
    0.6  # of what a prediction may take, that it has to have taken: what is far from the edge says nothing of it
)
INITIAL_USABLE_SHARE = 0.85  # share until enough is known
MIN_USABLE_SHARE, MAX_USABLE_SHARE = 0.7, 0.93  # beyond these a burst would teach too much, or a calm too little


@dataclass(slots=True)
class SafetyMargin:
    """Of one model. Errors are shares of the promise, so that classes with unlike promises learn from each other."""

    usable_share: float = INITIAL_USABLE_SHARE  # of the time there is
    _errors: deque[float] = field(default_factory=lambda: deque(maxlen=MARGIN_WINDOW))
    _new_samples: int = 0

    def record(self, predicted: float, realised: float, limit: float) -> None:
        """Learn from a first token; all in s from the ticket's arrival."""
        if predicted < MIN_RELEVANT_SHARE * self.usable_share * limit:
            return
        self._errors.append((realised - predicted) / limit)
        self._new_samples += 1
        if self._new_samples >= MARGIN_UPDATE_INTERVAL and len(self._errors) >= MIN_MARGIN_SAMPLES:
            self._new_samples = 0
            late = sorted(self._errors)[int(MARGIN_QUANTILE * len(self._errors))]
            self.usable_share = min(MAX_USABLE_SHARE, max(MIN_USABLE_SHARE, 1 - late))


MEAN_PROMPT_GAIN = 1 / 64  # of the mean
BUCKETS_PER_OCTAVE = 2
OCTAVES = 24
MAX_HISTOGRAM_TOKENS = 1 << 20  # tokens; beyond, all that was seen counts half


@dataclass(slots=True)
class PromptSizeHistogram:
    """A histogram of half-octaves, older prompts fading."""

    _tokens: list[float] = field(default_factory=lambda: [0.0] * (BUCKETS_PER_OCTAVE * OCTAVES))
    _total_tokens: float = 0.0
    mean_tokens: float = 0.0  # tokens

    def record(self, prompt_tokens: int) -> None:
        self._tokens[_bucket_index(prompt_tokens)] += prompt_tokens
        self._total_tokens += prompt_tokens
        self.mean_tokens += (prompt_tokens - self.mean_tokens) * (MEAN_PROMPT_GAIN if self.mean_tokens else 1.0)
        if self._total_tokens > MAX_HISTOGRAM_TOKENS:
            self._tokens = [each / 2 for each in self._tokens]
            self._total_tokens /= 2

    def share_of_shorter(self, prompt_tokens: int) -> float:
        """Of those about as long, half is taken to be shorter; so it is where nothing is known."""
        if not self._total_tokens:
            return 0.5
        own = _bucket_index(prompt_tokens)
        return (sum(self._tokens[:own]) + self._tokens[own] / 2) / self._total_tokens


def _bucket_index(prompt_tokens: int) -> int:
    return (
        min(BUCKETS_PER_OCTAVE * OCTAVES - 1, int(BUCKETS_PER_OCTAVE * log2(prompt_tokens))) if prompt_tokens > 1 else 0
    )


DEFAULT_OUTPUT_TOKENS = 256  # tokens; an answer of which nothing at all is known
MIN_HISTORY_ANSWERS = 4  # answers before a history counts
MIN_HISTORY_GAIN = 1 / 64  # gain; about as many answers are remembered
MAX_HISTORIES = 65_536  # tenants by model; the one that was not heard of for longest is forgotten


@dataclass(slots=True)
class LengthHistory:
    """Two experts, and which of them was right of late: the mean length, and the mean share of what was asked for.

    Where callers name a bound that says nothing, the first is better; where it is cut to the answer, the second.
    """

    answers: int = 0
    mean_tokens: float = 0.0  # tokens
    mean_share: float = 0.0  # of max_output_tokens
    mean_error: float = 0.0  # tokens, absolute
    share_error: float = 0.0

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
    """By tenant and model; a tenant that is new has the mean of all tenants of the model."""

    _by_model: dict[str, LengthHistory] = field(default_factory=dict)
    _by_tenant: OrderedDict[tuple[str, str], LengthHistory] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._by_tenant)

    def predict(self, model: str, tenant_id: str, max_output_tokens: int) -> int:
        """Return 1 to `most` tokens."""
        histories = self._by_tenant.get((model, tenant_id)), self._by_model.get(model)
        history = next((each for each in histories if each and each.answers >= MIN_HISTORY_ANSWERS), None)
        expected = history.predict(max_output_tokens) if history else DEFAULT_OUTPUT_TOKENS
        return max(1, min(max_output_tokens, round(expected)))

    def record(self, model: str, tenant_id: str, max_output_tokens: int, output_tokens: int) -> None:
        """Learn from an answer that was asked for with at most `most` tokens and had `output`."""
        own = self._by_tenant.setdefault((model, tenant_id), LengthHistory())
        self._by_tenant.move_to_end((model, tenant_id))
        if len(self._by_tenant) > MAX_HISTORIES:
            self._by_tenant.popitem(last=False)
        for history in (own, self._by_model.setdefault(model, LengthHistory())):
            history.record(max_output_tokens, output_tokens)
