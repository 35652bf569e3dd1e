"""Which steps are measured: decodes, prefill chunks and both at once, as far as a model's context goes. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

BLOCK_SIZE = 16
BUDGET = 1024  # tokens per step: above every point's
SLACK = 16  # tokens that a sequence is decoded on while it is measured

# Contexts of the decodes by how many there are, all multiples of a block. Long ones alone, as in practice: a crowd of
# long contexts takes minutes to prefill and says nothing that a smaller one does not.
DECODES = {
    1: (64, 512, 1024, 2048, 4096),
    2: (64, 1024, 2048),
    4: (128, 512, 2048),
    8: (64, 256, 1024),
    16: (128, 512, 768),
    32: (32, 128, 512),
}
CHUNKS = (16, 32, 64, 128, 256, 512)
STARTS = (0, 512, 1536, 3584)
MIXED = (
    (4, 512, 64, 0),
    (4, 2048, 256, 512),
    (8, 256, 16, 512),
    (8, 1024, 128, 0),
    (16, 128, 256, 0),
    (16, 512, 32, 1536),
    (32, 128, 64, 512),
    (32, 512, 480, 0),
)


@dataclass(frozen=True, slots=True)
class Point:
    """`seqs` decodes that read `context` positions each, beside `chunk` prefilled tokens after `start` cached ones."""

    seqs: int = 0
    context: int = 0
    chunk: int = 0
    start: int = 0

    @property
    def kind(self) -> str:
        return "mixed" if self.seqs and self.chunk else "decode" if self.seqs else "prefill"


def points_within(context_length: int, slots: int) -> list[Point]:
    """Every point for which the model's context has room and the engine slots."""
    every = [
        *(Point(seqs=seqs, context=context) for seqs, contexts in DECODES.items() for context in contexts),
        *(Point(chunk=chunk, start=start) for chunk in CHUNKS for start in STARTS),
        *(Point(*mixed) for mixed in MIXED),
    ]
    return [
        point
        for point in every
        if max(point.context + SLACK, point.start + point.chunk) < context_length and point.seqs < slots
    ]


def lengths_for(points: Sequence[Point]) -> list[int]:
    """How many tokens of each sequence have to be in the cache, so that no point waits for a prefill. Longest first.

    The first is also what chunks come after.
    """
    seqs = max(1, *(point.seqs for point in points))
    lengths = [max((point.context for point in points if point.seqs > place), default=0) for place in range(seqs)]
    lengths[0] = max(lengths[0], *(point.start for point in points))
    return lengths


def blocks_for(points: Sequence[Point]) -> int:
    """KV blocks that hold all of it, and what one round leaves behind in the prefix cache."""
    lengths = lengths_for(points)
    beside = sum(point.chunk + BLOCK_SIZE for point in points) + 2 * SLACK * len(lengths)
    return (sum(lengths) + 2 * beside) // BLOCK_SIZE + 2 * len(lengths)
