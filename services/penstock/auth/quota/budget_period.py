"""Budget periods: what was used in the present day or month. No clock; `now` is an argument."""

from datetime import UTC, datetime

from penstock.auth.identity.policy import BudgetPeriod

DAY_S = 86_400  # s
# A period that begins at most this long after `now` stays the present one: the clock was ahead when it began.
MAX_CLOCK_STEP_S = 86_400.0


def period_bounds(period: BudgetPeriod, now: float) -> tuple[int, int]:
    """Return start and end of the period of the calendar that contains `now`, as Unix s."""
    if period is BudgetPeriod.DAY:
        start = int(now // DAY_S) * DAY_S
        return start, start + DAY_S
    at = datetime.fromtimestamp(now, UTC)
    year, month = (at.year, at.month + 1) if at.month < 12 else (at.year + 1, 1)
    return _first_of(at.year, at.month), _first_of(year, month)


def _first_of(year: int, month: int) -> int:
    return int(datetime(year, month, 1, tzinfo=UTC).timestamp())


class PeriodUse:
    """Tokens and nanos that were used in the present period, of which a part is reserved.

    A request counts in the period in which it was reserved, first with its reservation, then with its charge. A
    settlement after the end of that period therefore changes nothing.

    `used` never falls because of a clock: a period ends at the earliest at its end, also if the clock is set back. A
    clock that was ahead by more than `MAX_CLOCK_STEP_S` has begun a period too early; what was used in it then counts
    for the present one.
    """

    __slots__ = ("end", "period", "reserved_nanos", "reserved_tokens", "start", "used_nanos", "used_tokens")

    def __init__(self, period: BudgetPeriod, start: int, used_tokens: int, used_nanos: int, now: float) -> None:
        self.period = period
        self.start = start
        self.end = period_bounds(period, start)[1] if start else 0
        self.used_tokens, self.used_nanos = used_tokens, used_nanos
        self.reserved_tokens = self.reserved_nanos = 0
        self.advance(now)

    def __repr__(self) -> str:
        return f"<PeriodUse {self.period} from {self.start}: {self.used_tokens} tokens, {self.used_nanos} nanos>"

    def advance(self, now: float) -> None:
        """Begin a new period if the present one has ended."""
        if self.start <= now < self.end:
            return
        start, end = period_bounds(self.period, now)
        if start < self.start:
            if self.start - now > MAX_CLOCK_STEP_S:
                self.start, self.end = start, end
            return
        self.start, self.end = start, end
        self.used_tokens = self.used_nanos = self.reserved_tokens = self.reserved_nanos = 0

    def reserve(self, tokens: int, nanos: int) -> int:
        """Count a reservation. Return the start of its period, which the later calls need."""
        self.used_tokens += tokens
        self.used_nanos += nanos
        self.reserve_again(tokens, nanos)
        return self.start

    def reserve_again(self, tokens: int, nanos: int) -> None:
        """Count a reservation as reserved that is a part of the stored use."""
        self.reserved_tokens += tokens
        self.reserved_nanos += nanos

    def release(self, start: int, tokens: int, nanos: int) -> None:
        """Count a reservation as spent."""
        if start == self.start:
            self.reserved_tokens -= tokens
            self.reserved_nanos -= nanos

    def give_back(self, start: int, tokens: int, nanos: int) -> None:
        """Subtract the part of a reservation that was not charged."""
        if start == self.start:
            self.used_tokens -= tokens
            self.used_nanos -= nanos
