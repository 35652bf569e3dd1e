"""Ideal prefix caches, to measure placement against: one shared cache of the size of all workers' caches together."""

import heapq
import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import NamedTuple


class CachedPrompt(NamedTuple):
    """One prompt as a chain of pieces. Its tokens beyond the pieces are used by no other prompt."""

    tokens: int
    pieces: tuple[Hashable, ...]
    piece_tokens: int

    def found_tokens(self, pieces: int) -> int:
        """Return the tokens of the leading `pieces`; the prompt may end within the last one."""
        return min(self.tokens, pieces * self.piece_tokens)


def shared_lru_tokens(prompts: Sequence[CachedPrompt], capacity: float) -> int:
    """Return the prompt tokens that one cache of `capacity` tokens finds if it evicts the least recently used piece."""
    sizes: OrderedDict[Hashable, int] = OrderedDict()
    held = found = 0
    for number, prompt in enumerate(prompts):
        found += prompt.found_tokens(_leading(prompt.pieces, sizes))
        own = max(0, prompt.tokens - len(prompt.pieces) * prompt.piece_tokens)
        entries = [*((piece, prompt.piece_tokens) for piece in prompt.pieces), (("own", number), own)]
        for piece, size in reversed(entries):  # the end of a chain is evicted first
            held += size - sizes.pop(piece, 0)
            sizes[piece] = size
        while held > capacity:
            held -= sizes.popitem(last=False)[1]
    return found


def clairvoyant_tokens(prompts: Sequence[CachedPrompt], capacity: float) -> int:
    """Return the prompt tokens that one cache finds if it evicts the piece whose next use is the furthest.

    It keeps nothing that is not used again. Source: Belady 1966, A study of replacement algorithms.
    """
    next_uses = _next_uses(prompts)
    sizes: dict[Hashable, int] = {}
    due: dict[Hashable, float] = {}
    furthest: list[tuple[float, int, Hashable]] = []
    held = found = 0
    for number, prompt in enumerate(prompts):
        found += prompt.found_tokens(_leading(prompt.pieces, sizes))
        for place, (piece, next_use) in enumerate(zip(prompt.pieces, next_uses[number], strict=True)):
            held -= sizes.pop(piece, 0)
            if math.isinf(next_use):
                continue
            held += prompt.piece_tokens
            sizes[piece], due[piece] = prompt.piece_tokens, next_use
            heapq.heappush(furthest, (-next_use, -place, piece))
        while held > capacity:
            next_use, _, piece = heapq.heappop(furthest)
            if piece in sizes and due[piece] == -next_use:
                held -= sizes.pop(piece)
    return found


def _leading(pieces: Sequence[Hashable], held: OrderedDict[Hashable, int] | dict[Hashable, int]) -> int:
    return next((place for place, piece in enumerate(pieces) if piece not in held), len(pieces))


def _next_uses(prompts: Sequence[CachedPrompt]) -> list[list[float]]:
    """Return, for each prompt, the number of the next prompt that uses each of its pieces; infinite if none does."""
    seen: dict[Hashable, float] = {}
    found: list[list[float]] = []
    for number in reversed(range(len(prompts))):
        pieces = prompts[number].pieces
        found.append([seen.get(piece, math.inf) for piece in pieces])
        seen.update(dict.fromkeys(pieces, float(number)))
    return found[::-1]
