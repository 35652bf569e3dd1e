"""How many tokens an answer is likely to have, from what its tenant's answers had. Pure arithmetic, no model."""

from collections import OrderedDict
from dataclasses import dataclass, field

PRIOR = 256  # tokens; an answer of which nothing at all is known
ENOUGH = 4  # answers before a history counts
SLOWEST = 1 / 64  # gain; about as many answers are remembered
MAX_HISTORIES = 65_536  # tenants by model; the one that was not heard of for longest is forgotten


@dataclass(slots=True)
class History:
    """Two experts, and which of them was right of late: the mean length, and the mean share of what was asked for.

    Where callers name a bound that says nothing, the first is better; where it is cut to the answer, the second.
    """

    answers: int = 0
    mean: float = 0.0  # tokens
    share: float = 0.0  # of max_output_tokens
    mean_error: float = 0.0  # tokens, absolute
    share_error: float = 0.0

    def predict(self, most: int) -> float:
        return self.share * most if self.share_error < self.mean_error else min(self.mean, most)

    def note(self, most: int, output: int) -> None:
        gain = max(SLOWEST, 1 / (self.answers + 1))
        if self.answers:
            self.mean_error += gain * (abs(min(self.mean, most) - output) - self.mean_error)
            self.share_error += gain * (abs(self.share * most - output) - self.share_error)
        self.mean += gain * (output - self.mean)
        self.share += gain * (output / most - self.share)
        self.answers += 1


@dataclass(slots=True)
class Lengths:
    """By tenant and model; a tenant that is new has the mean of all tenants of the model."""

    _of_models: dict[str, History] = field(default_factory=dict)
    _of_tenants: OrderedDict[tuple[str, str], History] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._of_tenants)

    def predict(self, model: str, tenant_id: str, most: int) -> int:
        """Return 1 to `most` tokens."""
        histories = self._of_tenants.get((model, tenant_id)), self._of_models.get(model)
        history = next((each for each in histories if each and each.answers >= ENOUGH), None)
        expected = history.predict(most) if history else PRIOR
        return max(1, min(most, round(expected)))

    def note(self, model: str, tenant_id: str, most: int, output: int) -> None:
        """Learn from an answer that was asked for with at most `most` tokens and had `output`."""
        own = self._of_tenants.setdefault((model, tenant_id), History())
        self._of_tenants.move_to_end((model, tenant_id))
        if len(self._of_tenants) > MAX_HISTORIES:
            self._of_tenants.popitem(last=False)
        for history in (own, self._of_models.setdefault(model, History())):
            history.note(most, output)
