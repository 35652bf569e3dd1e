"""A forecast of an engine of which all is known: what runs ends when it will, and room goes to the least served. Pure.

Time is counted in steps of the engine, service in weighted tokens. A step gives each running sequence one token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from penstock.queue.policies.cost import INPUT_WEIGHT, OUTPUT_WEIGHT

LEAD = 0.2  # of the cost of a request that does not fit, by which others may come to be ahead of its tenant
START = 2  # steps from a lease to the first token, about


class Size(NamedTuple):
    """One request, all of whose lengths are known."""

    prompt: int  # tokens
    output: int  # tokens
    blocks: int  # of KV
    weight: float  # of its tenant

    @property
    def cost(self) -> float:
        return (INPUT_WEIGHT * self.prompt + OUTPUT_WEIGHT * self.output) / self.weight


@dataclass(slots=True)
class Lane:
    """One tenant with a backlog."""

    service: float  # weighted tokens, beside the value at which it would be level with the others
    waiting: Iterator[Size]
    rate: float = 0.0  # weighted tokens per step
    coming: float = 0.0  # weighted tokens that its running requests get soon
    head: Size | None = None

    def __post_init__(self) -> None:
        self.next()

    def next(self) -> None:
        self.head = next(self.waiting, None)

    @property
    def stands(self) -> float:
        return self.service + self.coming


End = tuple[float, int, int, Size]  # step, number, place of the tenant or NOBODY, size
NOBODY = -1


@dataclass(slots=True)
class Rollout:
    """`held`: a lane that gets the next room, however long that takes; None: the least served that fits gets it."""

    lanes: Sequence[Lane]
    free_kv_blocks: int
    free_slots: int
    ahead: float  # tokens of each running answer that count before they come
    held: int | None = None
    now: float = 0.0
    _ends: list[End] = field(default_factory=list)
    _number: int = 0

    def run(self, place: int, size: Size, left: float, *, has_begun: bool) -> None:
        """Add a request that has `left` tokens to come; `place`: of its tenant's lane, or NOBODY."""
        self.free_kv_blocks -= size.blocks
        self.free_slots -= 1
        self._number += 1
        heappush(self._ends, (self.now + left, self._number, place, size))
        if place != NOBODY:
            lane = self.lanes[place]
            lane.service += 0.0 if has_begun else INPUT_WEIGHT * size.prompt / size.weight
            lane.rate += OUTPUT_WEIGHT / size.weight
            lane.coming += OUTPUT_WEIGHT * min(self.ahead, left) / size.weight

    def start(self, place: int, size: Size) -> None:
        self.run(place, size, size.output + START, has_begun=False)

    def unevenness(self, steps: float) -> float:
        """Run for `steps`; return the sum over these of the fourth powers of distances from the mean service."""
        total = 0.0
        while True:
            self._refill()
            until = min(self._ends[0][0], steps) if self._ends else steps
            total += self._advance(until)
            if until >= steps:
                return total
            self._end()

    def _advance(self, until: float) -> float:
        span, self.now = until - self.now, until
        for lane in self.lanes:
            lane.service += lane.rate * span
        mean = sum([lane.service for lane in self.lanes]) / len(self.lanes)
        return span * sum([(lane.service - mean) ** 4 for lane in self.lanes])

    def _end(self) -> None:
        while self._ends and self._ends[0][0] <= self.now:
            _, _, place, size = heappop(self._ends)
            self.free_kv_blocks += size.blocks
            self.free_slots += 1
            if place != NOBODY:
                self.lanes[place].rate -= OUTPUT_WEIGHT / size.weight
        for lane in self.lanes:
            lane.coming = 0.0
        for end, _, place, size in self._ends:
            if place != NOBODY:
                self.lanes[place].coming += OUTPUT_WEIGHT * min(self.ahead, end - self.now) / size.weight

    def _refill(self) -> None:
        while self.free_slots and (place := self._next()) is not None:
            lane = self.lanes[place]
            assert lane.head, "it was chosen for its head"
            self.start(place, lane.head)
            lane.next()

    def _next(self) -> int | None:
        """Return the lane that may start its head now."""
        if self.held is not None:
            head, place = self.lanes[self.held].head, self.held
            if head and head.blocks > self.free_kv_blocks:
                return None
            self.held = None
            return place if head else self._next()
        barrier = inf
        for place in sorted(range(len(self.lanes)), key=lambda each: self.lanes[each].stands):
            lane = self.lanes[place]
            if lane.stands > barrier:
                return None
            if lane.head:
                if lane.head.blocks <= self.free_kv_blocks:
                    return place
                barrier = min(barrier, lane.stands + LEAD * lane.head.cost)
        return None
