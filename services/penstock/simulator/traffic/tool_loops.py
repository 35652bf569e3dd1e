"""Demand of agents: loops of model calls and tools, in which each prompt repeats all earlier ones of its loop."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import NamedTuple

from penstock.simulator.traffic.arrivals import ArrivalProcess
from penstock.simulator.traffic.demand import LengthDistribution, OfferedRequest
from penstock.simulator.traffic.shared_prefixes import SharedPrefix

PIECE_TOKENS = 64
MAX_PIECES = 1 << 20  # of one loop or instruction text, so that their ids do not overlap


class Call(NamedTuple):
    """The next model call of a loop."""

    at: float  # s
    loop: int
    turn: int  # from 1
    turns: int
    text: int  # number of the instructions with which the loop begins
    tokens: int  # of the prompt


@dataclass(frozen=True, slots=True)
class ToolLoops:
    """Loops begin by `arrivals`. The time between two calls of a loop does not depend on how fast they are served."""

    arrivals: ArrivalProcess
    turns: LengthDistribution  # model calls of a loop
    growth: LengthDistribution  # tokens that an answer and the tool's result add to the next prompt
    output_lengths: LengthDistribution
    pause: float  # s, mean time between two calls of a loop; exponentially distributed
    instruction_tokens: int  # common to all loops with the same text
    instruction_texts: int = 1

    def requests(self, seed: str, load: float) -> Iterator[OfferedRequest]:
        loops, rng, outputs = count(), Random(f"{seed}/loops"), Random(f"{seed}/output")
        begins = (self._begin(at, next(loops), rng) for at in self.arrivals.times(Random(f"{seed}/arrivals"), load))
        following, pending = next(begins, None), list[Call]()
        while following or pending:
            if following and (not pending or following.at <= pending[0].at):
                call, following = following, next(begins, None)
            else:
                call = heapq.heappop(pending)
            if call.turn < call.turns:
                heapq.heappush(pending, self._next(call, rng))
            yield OfferedRequest(call.at, call.tokens, self.output_lengths.draw(outputs), self._prefix(call))

    def _begin(self, at: float, loop: int, rng: Random) -> Call:
        text = rng.randrange(self.instruction_texts)
        return Call(at, loop, 1, self.turns.draw(rng), text, self.instruction_tokens + self.growth.draw(rng))

    def _next(self, call: Call, rng: Random) -> Call:
        at = call.at + rng.expovariate(1 / self.pause)
        return call._replace(at=at, turn=call.turn + 1, tokens=call.tokens + self.growth.draw(rng))

    def _prefix(self, call: Call) -> SharedPrefix:
        instructions = self.instruction_tokens // PIECE_TOKENS
        own = -(-call.tokens // PIECE_TOKENS) - instructions
        text, loop = call.text * MAX_PIECES, (self.instruction_texts + call.loop) * MAX_PIECES
        return SharedPrefix((*range(text, text + instructions), *range(loop, loop + own)), PIECE_TOKENS)
