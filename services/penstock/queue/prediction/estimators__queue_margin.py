"""How much of a promise a prediction may take, learnt from how far first tokens came after what was predicted."""

from collections import deque
from dataclasses import dataclass, field

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
