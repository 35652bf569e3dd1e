"""First tokens that are owed to prompts let in, and which of them a shorter one that comes after would make late.

Workers do short prompts first, so whoever is let in later may be in time at the cost of longer prompts that were
promised theirs before. Each is kept with the time at which it would come if nobody else came, which all that pass it
move, and the time by which it is due: short of what was promised by as much as predictions may be off.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

BUDGET = 0.01  # promises that may be broken by each that is made: one long prompt would else hold up all shorter ones
MOST_BROKEN = 2.0  # promises at once, however many were kept before
IN_REACH = 3.0  # times what a prompt takes, that is left to do of those it passes: the oldest has a share for itself
MOST_OWED = 512  # of one model; of more, the newest, as each that comes is held against all


@dataclass(slots=True)
class First:
    """Of one prompt."""

    rank: int
    prompt: int  # tokens
    expected: float  # s; when it comes, but for those who are yet to come
    due: float  # s


class Block(NamedTuple):
    """Prompts that may not come in for a while."""

    lasts: float  # s
    least: int  # tokens; shorter ones take too little to matter


@dataclass(slots=True)
class Owed:
    """Of one model. What is expected to be out by now is forgotten."""

    budget: float = 0.0  # promises that may be broken
    _firsts: list[First] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._firsts)

    def allows(self, rank: int, prompt: int, takes: float, begins: float) -> bool:
        """Tell whether a prompt that takes `takes` s and has a slot when it `begins` may come in.

        Higher ranks have to bear it.
        """
        passed = self._passed(prompt, takes, begins)
        return self.budget >= sum(each.rank <= rank and each.expected + takes > each.due for each in passed)

    def block(self, rank: int, prompt: int, takes: float, begins: float) -> Block | None:
        """Return for how long it is not allowed, nor are shorter ones; None: it is.

        What a prompt takes goes by its length, and when it begins moves no faster than time.
        """
        late = [
            Block(
                each.expected - begins - IN_REACH * takes, int(prompt * max(0.0, each.due - each.expected) / takes) + 1
            )
            for each in self._passed(prompt, takes, begins)
            if each.rank <= rank and each.expected + takes > each.due
        ]
        enough = sorted(late, reverse=True)[: int(self.budget) + 1]
        if len(enough) <= self.budget:
            return None
        return Block(enough[-1].lasts, min(prompt, max(each.least for each in enough)))

    def let_in(self, prompt: int, takes: float, begins: float, now: float) -> None:
        """Delay those that it passes; those that this makes late hold up nobody any more."""
        for each in self._passed(prompt, takes, begins):
            each.expected += takes
        late = sum(each.expected > each.due for each in self._firsts)
        self.budget = max(0.0, self.budget - late)
        self._firsts = [each for each in self._firsts if now < each.expected <= each.due][-MOST_OWED:]

    def owe(self, first: First) -> None:
        self.budget = min(MOST_BROKEN, self.budget + BUDGET)
        self._firsts.append(first)
        if len(self._firsts) >= 2 * MOST_OWED:
            del self._firsts[:MOST_OWED]

    def _passed(self, prompt: int, takes: float, begins: float) -> Iterator[First]:
        horizon = begins + IN_REACH * takes
        return (each for each in self._firsts if each.prompt > prompt and each.expected > horizon)
