"""How many tokens an answer is likely to have, from what its tenant's answers had. Pure arithmetic, no model."""

from collections import OrderedDict
from dataclasses import dataclass, field

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
