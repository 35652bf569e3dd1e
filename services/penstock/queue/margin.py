"""How much of a promise a prediction may take, learnt from how far first tokens came after what was predicted."""

from collections import deque
from dataclasses import dataclass, field

QUANTILE = 0.993  # of tickets at the edge of their promise that are to be in time; of all that are let in, more are
WINDOW = 384  # first tokens that count
ENOUGH = 64  # of them before they do
RENEW = 16  # first tokens after which the quantile is taken anew
MATTERS = 0.6  # of what a prediction may take, that it has to have taken: what is far from the edge says nothing of it
FIRST = 0.85  # share until enough is known
LEAST, MOST = 0.7, 0.93  # beyond these a burst would teach too much, or a calm too little


@dataclass(slots=True)
class Margin:
    """Of one model. Errors are shares of the promise, so that classes with unlike promises learn from each other."""

    share: float = FIRST  # of the time there is
    _errors: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _fresh: int = 0

    def note(self, predicted: float, realised: float, promised: float) -> None:
        """Learn from a first token; all in s from the ticket's arrival."""
        if predicted < MATTERS * self.share * promised:
            return
        self._errors.append((realised - predicted) / promised)
        self._fresh += 1
        if self._fresh >= RENEW and len(self._errors) >= ENOUGH:
            self._fresh = 0
            late = sorted(self._errors)[int(QUANTILE * len(self._errors))]
            self.share = min(MOST, max(LEAST, 1 - late))
