"""One request as its client saw it."""

from dataclasses import dataclass, field

OK = "ok"
CANCELLED = "cancelled"


@dataclass(slots=True)
class Transcript:
    """Times are in s on one clock. `outcome` is ok, cancelled, or the reason of the error."""

    number: int
    started_at: float
    arrivals: list[float] = field(default_factory=list)  # of each piece with tokens
    tokens: int = 0
    next_index: int = 0
    index_errors: int = 0  # tokens missing, doubled or out of order
    ended_at: float = 0.0
    outcome: str = ""
    code: str = ""
    retry_after: float | None = None
    prompt_tokens: int = 0
    usage_tokens: int | None = None

    def record(self, now: float, first_index: int, count: int) -> None:
        """Note a piece of `count` tokens of which the first has index `first_index`."""
        if count == 0:
            return
        self.index_errors += first_index != self.next_index
        self.next_index = first_index + count
        self.tokens += count
        self.arrivals.append(now)

    def end(self, now: float, outcome: str, code: str = "OK", retry_after: float | None = None) -> None:
        self.ended_at, self.outcome, self.code, self.retry_after = now, outcome, code, retry_after
        if outcome == OK and self.usage_tokens is not None:
            self.index_errors += self.usage_tokens != self.tokens

    @property
    def ttft(self) -> float | None:
        return self.arrivals[0] - self.started_at if self.arrivals else None

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first."""
        if self.tokens < 2:
            return None
        return (self.arrivals[-1] - self.arrivals[0]) / (self.tokens - 1)

    @property
    def token_gaps(self) -> list[float]:
        """Inter-token latencies as seen: between pieces."""
        return [later - earlier for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False)]
