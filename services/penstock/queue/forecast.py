"""When a ticket will have its first token, predicted at its arrival and corrected by how well that was done before.

Wait for a lease: work ahead in the ticket's place in the order, less what free slots take at once, over the measured
service rate of full batches. Then the prefill backlog of the worker that is next, the own prompt and a step.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.queue.policies.order import Ahead
from penstock.queue.speed import ServiceRate, Speed
from penstock.queue.waiting import WaitingTicket

MEMORY = 1 / 64  # gain; about as many waits are remembered
CORRECTION_BOUNDS = 0.25, 4.0
SETTLING = 0.25  # s that tickets have to have waited before free slots are believed to be of no use to them
NOTICEABLE = 0.05  # s; what errors are relative to at least
ERRORS = 1_024  # remembered, for their quantiles


class Prediction(NamedTuple):
    """What a ticket that arrives now may expect; None: too little is known."""

    ahead: int  # tickets
    wait: float | None = None  # s to a lease
    first_token: float | None = None  # s
    after_lease: float = 0.0  # s of it
    raw: float = 0.0  # s; the wait before correction


@dataclass(slots=True)
class Forecast:
    """Of one model."""

    rate: ServiceRate = field(default_factory=ServiceRate)
    errors: deque[float] = field(default_factory=lambda: deque(maxlen=ERRORS))  # realised over predicted, less 1
    _realised: float = 0.0  # s, faded sums of waits and of their raw predictions
    _predicted: float = 0.0
    _short_since: float | None = None  # since when tickets wait that no credit was found for

    @property
    def correction(self) -> float:
        """Factor that predictions are multiplied by."""
        low, high = CORRECTION_BOUNDS
        return min(high, max(low, self._realised / self._predicted)) if self._predicted else 1.0

    def note_waiting(self, tickets: int, now: float) -> None:
        """Hear how many tickets are left without credit."""
        if not tickets:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = now

    def note_speed(self, speeds: Sequence[Speed], now: float) -> None:
        self.rate.note(speeds, is_saturated=self._is_short(now))

    def note_wait(self, prediction: float, raw: float, realised: float) -> None:
        """Learn from a ticket that got its lease; `prediction` is the corrected one."""
        self.errors.append((realised - prediction) / max(realised, NOTICEABLE))
        self._realised += MEMORY * (realised - self._realised)
        self._predicted += MEMORY * (raw - self._predicted)

    def predict(
        self, ticket: WaitingTicket, ahead: Ahead, speeds: Sequence[Speed], credit: int, now: float
    ) -> Prediction:
        """Say what `ticket` may expect behind `ahead`, where `credit` more tickets would be taken at once."""
        tickets = round(ahead.tickets)
        if not speeds:
            return Prediction(tickets)
        nearest = min(speeds, key=lambda each: each.backlog + each.prefill(ticket.prompt_tokens))
        after_lease = nearest.backlog + nearest.prefill(ticket.prompt_tokens)
        free = 0 if self._is_short(now) else max(credit, sum(each.free_slots for each in speeds))
        if ahead.tickets < free:
            return Prediction(tickets, 0.0, after_lease, after_lease)
        if not self.rate.full:
            return Prediction(tickets, after_lease=after_lease)
        # Its own place has to come free as well: by what one ticket of the line comes to.
        mean = ahead.work / ahead.tickets if ahead.tickets >= 1 else ticket.work
        raw = mean * (ahead.tickets - free + 1) / self.rate.full
        wait = raw * self.correction
        return Prediction(tickets, wait, wait + after_lease, after_lease, raw)

    def _is_short(self, now: float) -> bool:
        return self._short_since is not None and now - self._short_since > SETTLING
