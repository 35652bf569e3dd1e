"""When a ticket will have its first token, predicted at its arrival and corrected by how well that was done before.

Where workers tell what a step takes and when their leases are likely to end, from that (`outlook`). Else the work ahead
in the ticket's place in the order, less what free slots take at once, over the measured service rate of full batches;
then the prefill backlog of the worker that is next, the own prompt and a step.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import NamedTuple

from penstock.queue.curve import Curve
from penstock.queue.margin import Margin
from penstock.queue.outlook import Arrivals, Ask, Line, Moment
from penstock.queue.owed import Owed
from penstock.queue.pace import Pace
from penstock.queue.sizes import Sizes
from penstock.queue.speed import Release, ServiceRate, Speed, merged, together
from penstock.queue.waiting import WaitingTicket

MEMORY = 1 / 64  # gain; about as many waits are remembered
CORRECTION_BOUNDS = 0.25, 4.0
SETTLING = 0.25  # s that tickets have to have waited before free slots are believed to be of no use to them
INFLOW_MEMORY = 0.5  # s; a burst is to be seen while it lasts
MEAN_NEWS = 0.2  # relative change of how long tickets keep their slots
WAITS = 1_024  # remembered, for their quantiles
NO_CURVE = Curve((), 0.0)


class Prediction(NamedTuple):
    """What a ticket that arrives now may expect; None: too little is known."""

    ahead: int  # tickets
    wait: float | None = None  # s to a lease
    first_token: float | None = None  # s
    after_lease: float = 0.0  # s of it
    raw_wait: float = 0.0  # s; before correction; 0: there is nothing to be learnt from it, as with the next
    raw_first: float = 0.0  # s to the first token, likewise
    undisturbed: float = 0.0  # s to the first token, if nobody comes after it
    takes: float = 0.0  # s by which its prompt delays those that it passes from its lease on; 0: not known

    @property
    def least(self) -> float:
        """Return the s to the first token, or what is known of them."""
        return self.after_lease if self.first_token is None else self.first_token

    @property
    def waits(self) -> bool:
        """Tell whether it is for others to leave; what only has its prompt before it is predicted otherwise well."""
        return self.raw_wait > 0 or self.raw_first > 0


class Wait(NamedTuple):
    """What a ticket waited for its lease, in s, and what it was said to."""

    predicted: float
    realised: float

    @property
    def late(self) -> float:
        """Return the s that it waited longer than predicted; below 0: less."""
        return self.realised - self.predicted


@dataclass(slots=True)
class View:
    """What is the same for all tickets that are asked about at one moment."""

    speeds: Sequence[Speed]
    now: float
    speed: Speed  # of all together, without slots that nobody can use
    moment: Moment
    answer: float = -1.0  # tokens of those that went before the last ticket that was asked about, in the mean
    curve: Curve = NO_CURVE  # for it

    def is_of(self, speeds: Sequence[Speed], now: float) -> bool:
        return self.now == now and len(self.speeds) == len(speeds) and all(map(is_, self.speeds, speeds))


@dataclass(slots=True)
class Forecast:
    """Of one model."""

    rate: ServiceRate = field(default_factory=ServiceRate)
    margins: tuple[Margin, Margin] = field(default_factory=lambda: (Margin(), Margin()))  # without a wait, and with
    sizes: Sizes = field(default_factory=Sizes)
    owed: Owed = field(default_factory=Owed)
    waits: deque[Wait] = field(default_factory=lambda: deque(maxlen=WAITS))  # of late
    inflow: Pace = field(default_factory=lambda: Pace(memory=INFLOW_MEMORY, warm_up=INFLOW_MEMORY))  # of prompts
    answer: float = 0.0  # tokens, mean of those placed of late as predicted
    _realised: float = 0.0  # s, faded sums of waits and of their raw predictions
    _predicted: float = 0.0
    _short_since: float | None = None  # since when tickets wait that no credit was found for
    _curve: Curve = NO_CURVE
    _curve_of: Sequence[Sequence[Release]] = ()  # one of each scheduler
    _curve_mean: float = 0.0  # s
    _view: View | None = None  # of the last ticket that was asked about; None: something has changed since

    @property
    def correction(self) -> float:
        """Factor that predictions are multiplied by."""
        low, high = CORRECTION_BOUNDS
        return min(high, max(low, self._realised / self._predicted)) if self._predicted else 1.0

    def note_waiting(self, tickets: int, now: float) -> None:
        """Hear how many tickets are left without credit."""
        self._view = None
        if not tickets:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = now

    def note_speed(self, speeds: Sequence[Speed], now: float) -> None:
        self.rate.note(speeds, is_saturated=self._is_short(now))

    def note_placed(self, ticket: WaitingTicket, now: float) -> None:
        self._view = None
        self.inflow.note(ticket.prompt_tokens, now)
        self.sizes.note(ticket.prompt_tokens)
        self.answer += (ticket.output - self.answer) * (MEMORY if self.answer else 1.0)

    def note_first_token(self, ticket: WaitingTicket, realised: float) -> None:
        """Learn from a first token; `realised` is in s from its ticket's arrival."""
        if ticket.raw_first:
            self.note_ratio(ticket.raw_first, realised)
        if ticket.promised:
            waits = ticket.raw_wait > 0 or ticket.raw_first > 0
            self.margins[waits].note(ticket.predicted_first, realised, ticket.promised)

    def note_wait(self, prediction: float, raw: float, realised: float) -> None:
        """Learn from a ticket that got its lease; `prediction` is the corrected one."""
        self.waits.append(Wait(prediction, realised))
        if raw:
            self.note_ratio(raw, realised)

    def note_ratio(self, raw: float, realised: float) -> None:
        """Learn what uncorrected predictions of late are to be multiplied by."""
        self._realised += MEMORY * (realised - self._realised)
        self._predicted += MEMORY * (raw - self._predicted)

    @property
    def headroom(self) -> float:
        """Return the share of a promise that a prediction with a wait may take."""
        return self.margins[True].share

    def usable(self, prediction: Prediction) -> float:
        """Return the share of a promise that it may take."""
        return self.margins[prediction.waits].share

    def predict(
        self, ticket: WaitingTicket, ahead: Line, speeds: Sequence[Speed], credit: int, now: float
    ) -> Prediction:
        """Say what `ticket` may expect behind `ahead`, where `credit` more tickets would be taken at once."""
        if not speeds:
            return Prediction(round(ahead.tickets))
        view = self._view
        if view is None or not view.is_of(speeds, now):
            if not all(each.has_law for each in speeds):
                return self._by_rate(ticket, ahead, speeds, credit, now)
            view = self._view = self._view_of(speeds, now)
        return self._by_law(ticket, ahead, view)

    def _by_law(self, ticket: WaitingTicket, ahead: Line, view: View) -> Prediction:
        answer = ahead.answer or self.answer
        if answer != view.answer:
            view.answer, view.curve = answer, self._curve_for(view.speeds, view.speed, answer)
        ask = Ask(ticket.prompt_tokens, ticket.tokens, self.sizes.share_of_shorter(ticket.prompt_tokens))
        found = view.moment.outlook(view.curve, ahead, ask)
        tickets, correction = round(ahead.tickets), self.correction
        if not found.waits:
            after = found.first_token - found.wait
            return Prediction(tickets, found.wait, found.first_token, after, 0.0, 0.0, found.undisturbed, found.takes)
        wait, first = correction * found.wait, correction * found.first_token
        undisturbed = correction * found.undisturbed
        return Prediction(tickets, wait, first, first - wait, 0.0, found.first_token, undisturbed, found.takes)

    def _view_of(self, speeds: Sequence[Speed], now: float) -> View:
        speed = together(speeds)
        if speed.leases < speed.slots and self._is_short(now):
            speed = speed._replace(slots=speed.leases)
        arrivals = Arrivals(max(0.0, now - speed.at), self.inflow.tokens_per_second(now), self.sizes.mean)
        return View(speeds, now, speed, Moment(speed, arrivals))

    def _curve_for(self, speeds: Sequence[Speed], speed: Speed, answer: float) -> Curve:
        """Return the curve of reports, `speed` all together, where answers have so many tokens."""
        mean = speed.decode_step * answer
        curves = [each.releases for each in speeds]
        is_known = len(curves) == len(self._curve_of) and all(map(is_, curves, self._curve_of))
        if not is_known or abs(mean - self._curve_mean) > MEAN_NEWS * mean:
            self._curve_of, self._curve_mean = curves, mean
            self._curve = Curve(merged(curves), mean, max(0, speed.slots - speed.leases))
        return self._curve

    def _by_rate(
        self, ticket: WaitingTicket, ahead: Line, speeds: Sequence[Speed], credit: int, now: float
    ) -> Prediction:
        tickets = round(ahead.tickets)
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
