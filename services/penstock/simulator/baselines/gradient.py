"""A limit on how much is under way that follows a gradient of response times, first come first served below it.

Source: Envoy's adaptive concurrency filter, gradient controller: every sampling window limit = limit * gradient +
sqrt(limit), gradient = (least RTT + buffer) / the window's RTT, held to 0.5 .. 2; the least RTT is what a window gives
in which no more than `least` are let through. Whatever comes above the limit is refused at once.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.queue.policies.policy import FitFn
from penstock.queue.ticket import QueuedTicket
from penstock.simulator.baselines.dropping import DroppingFifo, NeverDrop

RTT_BUFFER_SHARE = 0.25  # of the least RTT: Envoy's default
GRADIENT_RANGE = 0.5, 2.0


@dataclass(slots=True)
class GradientController:
    """The controller. RTTs are waits for a lease, as what follows one is as long as its answer is."""

    min_limit: int = 3  # let through while the least RTT is measured
    remeasure_interval_s: float = 60.0  # s between two measurements of it
    window_s: float = 0.1  # s
    limit: float = 3.0
    _min_rtt: float = 0.0  # s; 0: being measured
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
    """A FIFO with room for as many as the controller lets wait; what comes above is dropped at once."""

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
