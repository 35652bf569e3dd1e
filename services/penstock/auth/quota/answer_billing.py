"""Answer billing: the charges of each answer over all requests that produced it. No clock, no limits, no store."""

from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple

from penstock.auth.quota.reservation import FINAL_OUTCOMES, ReservationRequest

MAX_ANSWERS = 20_000  # answers that are kept; a request of an older answer is charged separately
MAX_DELEGATED_ANSWERS = 100_000  # the same for those of lines, which are many: more than run for a minute
MAX_CONTINUATIONS_PER_ANSWER = 8  # requests that continue one answer; further ones are charged separately

Intervals = tuple[tuple[int, int], ...]  # token indexes [start, end), in order, with gaps between them


class ChargeDelta(NamedTuple):
    """Tokens that one request adds to the charge of its answer."""

    prompt_tokens: int
    output_tokens: int


NO_CHARGE = ChargeDelta(0, 0)


class AnswerBilling:
    """Charges of one answer over its settled requests, in any order.

    An answer is charged for its prompt once, for each token that a request has generated, and for tokens that the
    client claims to have received and that no request was charged for. Such tokens come from a request whose edge died,
    or the claim is false. A request can only add to this total, so its charge is a difference, and the sum of the
    charges does not depend on the order of the requests.
    """

    __slots__ = ("_billed_intervals", "_charged_total", "_claimed_tokens", "_made_tokens", "continuations", "tenant_id")

    def __init__(self, tenant_id: str) -> None:
        self.tenant_id = tenant_id
        self.continuations = 0
        self._charged_total = NO_CHARGE
        self._claimed_tokens = 0  # tokens that the client claims to have received
        self._made_tokens = 0
        self._billed_intervals: Intervals = ()  # tokens charged to the requests that generated them

    def add_request(self, prompt_tokens: int, emitted_tokens: int, made_tokens: int, *, begins: bool) -> ChargeDelta:
        """Return the charge of one request. `emitted_tokens` are ignored for a request that `begins` the answer."""
        self._made_tokens += made_tokens
        self._billed_intervals = merge_intervals(
            self._billed_intervals, 0 if begins else emitted_tokens, emitted_tokens + made_tokens
        )
        if not begins:
            self._claimed_tokens = max(self._claimed_tokens, emitted_tokens)
        total = ChargeDelta(
            max(self._charged_total.prompt_tokens, prompt_tokens), self._made_tokens + self._unbilled_claimed_tokens()
        )
        delta = ChargeDelta(*(now - before for now, before in zip(total, self._charged_total, strict=True)))
        self._charged_total = total
        return delta

    def _unbilled_claimed_tokens(self) -> int:
        """Return the number of claimed tokens outside of the billed intervals."""
        billed = (
            min(end, self._claimed_tokens) - min(start, self._claimed_tokens) for start, end in self._billed_intervals
        )
        return self._claimed_tokens - sum(billed)


def merge_intervals(intervals: Intervals, start: int, end: int) -> Intervals:
    """Return the intervals with one more, merged with those that it overlaps or touches."""
    apart = [each for each in intervals if each[1] < start or each[0] > end]
    across = [each for each in intervals if each[1] >= start and each[0] <= end]
    whole = min([start, *(each[0] for each in across)]), max([end, *(each[1] for each in across)])
    return tuple(sorted([*apart, whole]))


class DelegatedAnswers:
    """Charges of recent answers of lines, each over its requests in any order.

    Their callers are not there: the mesh chooses their answer ids, and repeats a request, from any token on, if a
    process dies before the answer is stored. An answer is charged for its prompt once, and for its output up to the
    last token that one of its requests has generated or received. Tokens that are generated again are free.
    """

    def __init__(self, *, max_answers: int = MAX_DELEGATED_ANSWERS) -> None:
        self._max_answers = max_answers
        self._charged: OrderedDict[bytes, tuple[str, ChargeDelta]] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._charged)

    def forget(self, is_forgotten: Callable[[str], bool]) -> None:
        """Forget the answers of tenants of which `is_forgotten` is true."""
        kept = ((key, answer) for key, answer in self._charged.items() if not is_forgotten(answer[0]))
        self._charged = OrderedDict(kept)

    def charge(self, key: bytes, tenant_id: str, prompt_tokens: int, output_tokens: int) -> ChargeDelta:
        """Return the charge of a request after which the output has `output_tokens`, those before it included."""
        _, before = self._charged.get(key, ("", NO_CHARGE))
        total = ChargeDelta(max(before.prompt_tokens, prompt_tokens), max(before.output_tokens, output_tokens))
        self._charged[key] = tenant_id, total
        self._charged.move_to_end(key)
        if len(self._charged) > self._max_answers:
            self._charged.popitem(last=False)
        return ChargeDelta(total.prompt_tokens - before.prompt_tokens, total.output_tokens - before.output_tokens)


class AnswerLedger:
    """Recent answers. An answer id of a client counts only if auth has charged requests under this id."""

    def __init__(self) -> None:
        self._billings: OrderedDict[bytes, AnswerBilling] = OrderedDict()  # least recently used first
        self._delegated = DelegatedAnswers()

    def __len__(self) -> int:
        return len(self._billings) + len(self._delegated)

    def forget(self, is_forgotten: Callable[[str], bool]) -> None:
        """Forget the answers of tenants of which `is_forgotten` is true."""
        kept = ((key, answer) for key, answer in self._billings.items() if not is_forgotten(answer.tenant_id))
        self._billings = OrderedDict(kept)
        self._delegated.forget(is_forgotten)

    def add_continuation(self, request: ReservationRequest) -> bool:
        """Count a request that continues an answer. Return False if the answer was continued too often."""
        if request.is_delegated:  # a line may be shed any number of times
            return True
        answer = self._billing_of(request)
        answer.continuations += 1
        return answer.continuations <= MAX_CONTINUATIONS_PER_ANSWER

    def charge(self, request: ReservationRequest, prompt_tokens: int, made_tokens: int, outcome: str) -> ChargeDelta:
        """Return the charge of a request with these tokens.

        A request that used no tokens costs nothing, unless it continued an answer that was complete already: its
        client has received the answer.
        """
        continues = bool(request.answer_id)
        if not (prompt_tokens or made_tokens or (continues and outcome in FINAL_OUTCOMES)):
            return NO_CHARGE
        prompt = request.prompt_tokens if continues else prompt_tokens
        if request.is_delegated:
            output = made_tokens + (request.emitted_tokens if continues else 0)
            return self._delegated.charge(_answer_key(request), request.tenant_id, prompt, output)
        return self._billing_of(request).add_request(prompt, request.emitted_tokens, made_tokens, begins=not continues)

    def _billing_of(self, request: ReservationRequest) -> AnswerBilling:
        key = _answer_key(request)
        answer = self._billings.get(key)
        if answer is None:
            answer = self._billings[key] = AnswerBilling(request.tenant_id)
            if len(self._billings) > MAX_ANSWERS:
                self._billings.popitem(last=False)
        self._billings.move_to_end(key)
        return answer


def _answer_key(request: ReservationRequest) -> bytes:
    """Return a short key of tenant, answer and fingerprint. The answer id of another tenant has another key."""
    identity = repr((request.tenant_id, request.answer_id or request.request_id, request.fingerprint))
    return blake2b(identity.encode(), digest_size=16).digest()
