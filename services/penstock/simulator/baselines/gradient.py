"""Adaptive concurrency: a FIFO with a limit of waiting tickets that follows the gradient of response times.

Source: Envoy's adaptive concurrency filter, gradient controller: every sampling window limit = limit * gradient +
sqrt(limit), gradient = (min RTT + buffer) / the window's RTT, clamped to 0.5 .. 2; the min RTT is measured in a window
with the limit at `min_limit`. Tickets above the limit are rejected at once.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.queue.policies.policy import FitFn
from penstock.queue.ticket import QueuedTicket
from penstock.simulator.baselines.dropping import DroppingFifo, NeverDrop

RTT_BUFFER_SHARE = 0.25  # of the min RTT; Envoy's default
GRADIENT_RANGE = 0.5, 2.0


@dataclass(slots=True)
class GradientController:
    """The gradient controller. RTTs are waits for a lease, because the time after it depends on the answer's length."""

    min_limit: int = 3  # limit while the min RTT is measured
    remeasure_interval_s: float = 60.0  # between two measurements of the min RTT
    window_s: float = 0.1  # sampling window
    limit: float = 3.0
    _min_rtt: float = 0.0  # s; 0 while it is measured
    _measured_at: float = 0.0
    _window_ends_at: float = 0.0
    _rtt_samples: list[float] = field(default_factory=list)

    def record(self, rtt: float, now: float) -> None:
        self._rtt_samples.append(max(rtt, 1e-3))
        if now < self._window_ends_at:
            return
        self._window_ends_at = now + self.window_s
        median = sorted(self._rtt_samples)[len(self._rtt_samples) // 2]
        self._rtt_samples.clear()
        if not self._min_rtt:
            self._min_rtt, self._measured_at = median, now
            return
        if now > self._measured_at + self.remeasure_interval_s:
            self._min_rtt, self.limit = 0.0, float(self.min_limit)
            return
        low, high = GRADIENT_RANGE
        gradient = min(high, max(low, self._min_rtt * (1 + RTT_BUFFER_SHARE) / median))
        self.limit = max(float(self.min_limit), self.limit * gradient + math.sqrt(self.limit))


class GradientLimitedFifo(DroppingFifo):
    """A FIFO that drops a new ticket at once if more tickets wait than the controller allows."""

    def __init__(self, controller: GradientController, clock: Callable[[], float]) -> None:
        super().__init__(NeverDrop(), clock)
        self._controller = controller

    def push(self, ticket: QueuedTicket) -> None:
        super().push(ticket)
        if self.totals.tickets > self._controller.limit and not ticket.is_resumed:
            self._dropped.append(ticket)

    def pop_fitting(self, fit: FitFn) -> QueuedTicket | None:
        ticket = super().pop_fitting(fit)
        if ticket:
            now = self._clock()
            self._controller.record(now - ticket.arrived, now)
            self._dropped = [each for each in self._dropped if each is not ticket]
        return ticket
