"""Messages of gRPC calls that have begun to arrive: which of them take too long, or are too many together.

gRPC reports neither the announced size of a message nor how much of it has arrived, and may hold all of it. A message
that is slow therefore counts as one of the largest size.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.chassis.errors import DeadlineExceeded, Overloaded, PenstockError

SLOW_AFTER_S = 1.0  # a message of a usual size has arrived by then
RETRY_AFTER_S = 1.0


class MessageStalled(DeadlineExceeded):
    """A message did not arrive in time."""

    default_reason = "BODY_STALLED"

    def __init__(self, timeout: float) -> None:
        super().__init__(f"the message did not arrive within {timeout:g} s; send a smaller one, or use a faster link")


@dataclass(slots=True, eq=False)
class MessageRead:
    """One message that is being read."""

    caller: str  # tenant, or key
    began_at: float


class UnfinishedMessages:
    """All messages that are being read, in order of their begin."""

    def __init__(self, *, max_slow: int, timeout: float) -> None:
        self._max_slow = max_slow  # of the process; one caller may have half of them
        self._timeout = timeout  # s
        self._reads: dict[MessageRead, None] = {}
        self.refused = Counter[str]()  # by reason

    def __len__(self) -> int:
        return len(self._reads)

    def begin(self, caller: str, now: float) -> MessageRead:
        read = MessageRead(caller, now)
        self._reads[read] = None
        return read

    def end(self, read: MessageRead) -> None:
        del self._reads[read]

    def excess(self, now: float) -> Iterator[tuple[MessageRead, PenstockError]]:
        """Yield the reads to end, each with its error: overdue ones, and the newest slow ones beyond the bounds."""
        slow, by_caller = 0, Counter[str]()
        for read in list(self._reads):
            waited = now - read.began_at
            if waited < SLOW_AFTER_S:
                return  # so have all later ones
            if waited > self._timeout:
                yield self._refused(read, MessageStalled(self._timeout))
                continue
            if slow >= self._max_slow or by_caller[read.caller] >= max(1, self._max_slow // 2):
                text = f"this edge waits for {slow} messages that are not complete"
                error = Overloaded(
                    f"{text}; retry in {RETRY_AFTER_S:g} s", reason="EDGE_FULL", retry_after=RETRY_AFTER_S
                )
                yield self._refused(read, error)
                continue
            slow += 1
            by_caller[read.caller] += 1

    def _refused(self, read: MessageRead, error: PenstockError) -> tuple[MessageRead, PenstockError]:
        self.refused[error.reason] += 1
        return read, error
