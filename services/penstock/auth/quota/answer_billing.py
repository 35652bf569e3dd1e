"""What of each answer was charged, over all the requests it took. Knows no clock, no tenant's limits and no store."""

from collections import OrderedDict
from hashlib import blake2b
from typing import NamedTuple

from penstock.auth.quota.reservation import FINAL_OUTCOMES, ReservationRequest

MAX_ANSWERS = 20_000  # answers whose next request may still come; one of an older answer is charged by itself
MAX_CONTINUATIONS_PER_ANSWER = 8  # of one answer; further ones are charged by themselves

Intervals = tuple[tuple[int, int], ...]  # indexes from, up to: in order, none touching the next


class ChargeDelta(NamedTuple):
    """What one request adds to what its answer is charged."""

    prompt_tokens: int
    output_tokens: int


NO_CHARGE = ChargeDelta(0, 0)


class AnswerBilling:
    """The requests of one answer that have ended, in whatever order they did.

    Owed are its prompt once, every token that a request made, and those that a client has by its own word and no
    request of the answer was charged for: they came from one whose edge died, or were made up. Each request that
    comes to it can only add to what is owed, so the charges are differences, and their sum is the same in any order.
    """

    __slots__ = ("_billed_intervals", "_charged_total", "_claimed_tokens", "_made_tokens", "continuations")

    def __init__(self) -> None:
        self.continuations = 0
        self._charged_total = NO_CHARGE
        self._claimed_tokens = 0  # tokens that the client had, by its own word
        self._made_tokens = 0
        self._billed_intervals: Intervals = ()  # indexes that are paid for by who made them

    def add_request(self, prompt_tokens: int, emitted_tokens: int, made_tokens: int, *, begins: bool) -> ChargeDelta:
        """Return what to charge. What a request had that `begins` its answer is nobody's concern, as it ever was."""
        self._made_tokens += made_tokens
        self._billed_intervals = merge_intervals(
            self._billed_intervals, 0 if begins else emitted_tokens, emitted_tokens + made_tokens
        )
        if not begins:
            self._claimed_tokens = max(self._claimed_tokens, emitted_tokens)
        owed = ChargeDelta(
            max(self._charged_total.prompt_tokens, prompt_tokens), self._made_tokens + self._unbilled_claimed_tokens()
        )
        due = ChargeDelta(*(now - before for now, before in zip(owed, self._charged_total, strict=True)))
        self._charged_total = owed
        return due

    def _unbilled_claimed_tokens(self) -> int:
        """Claimed tokens that lie in no stretch."""
        paid = (
            min(end, self._claimed_tokens) - min(start, self._claimed_tokens) for start, end in self._billed_intervals
        )
        return self._claimed_tokens - sum(paid)


def merge_intervals(intervals: Intervals, start: int, end: int) -> Intervals:
    """Add one more to them, which may lie across some."""
    apart = [each for each in intervals if each[1] < start or each[0] > end]
    across = [each for each in intervals if each[1] >= start and each[0] <= end]
    whole = min([start, *(each[0] for each in across)]), max([end, *(each[1] for each in across)])
    return tuple(sorted([*apart, whole]))


class AnswerLedger:
    """All answers of late. What a client names is worth what auth itself has booked under that name."""

    def __init__(self) -> None:
        self._billings: OrderedDict[bytes, AnswerBilling] = OrderedDict()  # the longest unheard of first

    def __len__(self) -> int:
        return len(self._billings)

    def add_continuation(self, request: ReservationRequest) -> bool:
        """Note one more request of an answer that goes on; False when it has gone on too often."""
        answer = self._billing_of(request)
        answer.continuations += 1
        return answer.continuations <= MAX_CONTINUATIONS_PER_ANSWER

    def charge(self, request: ReservationRequest, prompt_tokens: int, made_tokens: int, outcome: str) -> ChargeDelta:
        """What a request that was reserved as `ask` costs, having used so much.

        One that ran nothing costs nothing, unless it continued an answer and found it whole: then its client has it.
        """
        continues = bool(request.answer_id)
        if not (prompt_tokens or made_tokens or (continues and outcome in FINAL_OUTCOMES)):
            return NO_CHARGE
        prompt = request.prompt_tokens if continues else prompt_tokens
        return self._billing_of(request).add_request(prompt, request.emitted_tokens, made_tokens, begins=not continues)

    def _billing_of(self, request: ReservationRequest) -> AnswerBilling:
        key = _answer_key(request)
        answer = self._billings.get(key)
        if answer is None:
            answer = self._billings[key] = AnswerBilling()
            if len(self._billings) > MAX_ANSWERS:
                self._billings.popitem(last=False)
        self._billings.move_to_end(key)
        return answer


def _answer_key(request: ReservationRequest) -> bytes:
    """Of tenant, answer and fingerprint: who names a stranger's answer names none. Short, as many are kept."""
    named = repr((request.tenant_id, request.answer_id or request.request_id, request.fingerprint))
    return blake2b(named.encode(), digest_size=16).digest()
