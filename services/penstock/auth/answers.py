"""What of each answer was charged, over all the requests it took. Knows no clock, no tenant's limits and no store."""

from collections import OrderedDict
from hashlib import blake2b
from typing import NamedTuple

from penstock.auth.reservation import FINAL, Ask

MAX_ANSWERS = 20_000  # answers whose next request may still come; one of an older answer is charged by itself
MAX_CONTINUATIONS = 8  # of one answer; further ones are charged by themselves

Stretches = tuple[tuple[int, int], ...]  # indexes from, up to: in order, none touching the next


class Due(NamedTuple):
    """What one request adds to what its answer is charged."""

    prompt_tokens: int
    output_tokens: int


NOTHING = Due(0, 0)


class Answer:
    """The requests of one answer that have ended, in whatever order they did.

    Owed are its prompt once, every token that a request made, and those that a client has by its own word and no
    request of the answer was charged for: they came from one whose edge died, or were made up. Each request that
    comes to it can only add to what is owed, so the charges are differences, and their sum is the same in any order.
    """

    __slots__ = ("_charged", "_claimed", "_made", "_stretches", "continuations")

    def __init__(self) -> None:
        self.continuations = 0
        self._charged = NOTHING
        self._claimed = 0  # tokens that the client had, by its own word
        self._made = 0
        self._stretches: Stretches = ()  # indexes that are paid for by who made them

    def add(self, prompt_tokens: int, emitted_tokens: int, made_tokens: int, *, begins: bool) -> Due:
        """Return what to charge. What a request had that `begins` its answer is nobody's concern, as it ever was."""
        self._made += made_tokens
        self._stretches = joined(self._stretches, 0 if begins else emitted_tokens, emitted_tokens + made_tokens)
        if not begins:
            self._claimed = max(self._claimed, emitted_tokens)
        owed = Due(max(self._charged.prompt_tokens, prompt_tokens), self._made + self._unaccounted())
        due = Due(*(now - before for now, before in zip(owed, self._charged, strict=True)))
        self._charged = owed
        return due

    def _unaccounted(self) -> int:
        """Claimed tokens that lie in no stretch."""
        paid = (min(end, self._claimed) - min(start, self._claimed) for start, end in self._stretches)
        return self._claimed - sum(paid)


def joined(stretches: Stretches, start: int, end: int) -> Stretches:
    """Add one more to them, which may lie across some."""
    apart = [each for each in stretches if each[1] < start or each[0] > end]
    across = [each for each in stretches if each[1] >= start and each[0] <= end]
    whole = min([start, *(each[0] for each in across)]), max([end, *(each[1] for each in across)])
    return tuple(sorted([*apart, whole]))


class Answers:
    """All answers of late. What a client names is worth what auth itself has booked under that name."""

    def __init__(self) -> None:
        self._answers: OrderedDict[bytes, Answer] = OrderedDict()  # the longest unheard of first

    def __len__(self) -> int:
        return len(self._answers)

    def join(self, ask: Ask) -> bool:
        """Note one more request of an answer that goes on; False when it has gone on too often."""
        answer = self._of(ask)
        answer.continuations += 1
        return answer.continuations <= MAX_CONTINUATIONS

    def charge(self, ask: Ask, prompt_tokens: int, made_tokens: int, outcome: str) -> Due:
        """What a request that was reserved as `ask` costs, having used so much.

        One that ran nothing costs nothing, unless it continued an answer and found it whole: then its client has it.
        """
        continues = bool(ask.answer_id)
        if not (prompt_tokens or made_tokens or (continues and outcome in FINAL)):
            return NOTHING
        prompt = ask.prompt_tokens if continues else prompt_tokens
        return self._of(ask).add(prompt, ask.emitted_tokens, made_tokens, begins=not continues)

    def _of(self, ask: Ask) -> Answer:
        key = _key(ask)
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = Answer()
            if len(self._answers) > MAX_ANSWERS:
                self._answers.popitem(last=False)
        self._answers.move_to_end(key)
        return answer


def _key(ask: Ask) -> bytes:
    """Of tenant, answer and fingerprint: who names a stranger's answer names none. Short, as many are kept."""
    named = repr((ask.tenant_id, ask.answer_id or ask.request_id, ask.fingerprint))
    return blake2b(named.encode(), digest_size=16).digest()
