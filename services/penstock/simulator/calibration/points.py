"""Which steps are measured: decodes, prefill chunks and both at once, as far as a model's context goes. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

BLOCK_SIZE = 16
TOKEN_BUDGET = 1024  # tokens per step: above every point's
DECODE_MARGIN_TOKENS = 16  # tokens that a sequence is decoded on while it is measured

# Contexts of the decodes by how many there are, all multiples of a block. Long ones alone, as in practice: a crowd of
# long contexts takes minutes to prefill and says nothing that a smaller one does not.
DECODE_CONTEXTS = {
    1: (64, 512, 1024, 2048, 4096),
    2: (64, 1024, 2048),
    4: (128, 512, 2048),
    8: (64, 256, 1024),
    16: (128, 512, 768),
    32: (32, 128, 512),
}
PREFILL_CHUNKS = (16, 32, 64, 128, 256, 512)
PREFILL_STARTS = (0, 512, 1536, 3584)
MIXED_POINTS = (
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
class CalibrationPoint:
    """`seqs` decodes that read `context` positions each, beside `chunk` prefilled tokens after `start` cached ones."""

    seqs: int = 0
    context: int = 0
    chunk: int = 0
    start: int = 0

    @property
    def kind(self) -> str:
        return "mixed" if self.seqs and self.chunk else "decode" if self.seqs else "prefill"


def points_for(context_length: int, slots: int) -> list[CalibrationPoint]:
    """Every point for which the model's context has room and the engine slots."""
    every = [
        *(
            CalibrationPoint(seqs=seqs, context=context)
            for seqs, contexts in DECODE_CONTEXTS.items()
            for context in contexts
        ),
        *(CalibrationPoint(chunk=chunk, start=start) for chunk in PREFILL_CHUNKS for start in PREFILL_STARTS),
        *(CalibrationPoint(*mixed) for mixed in MIXED_POINTS),
    ]
    return [
        point
        for point in every
        if max(point.context + DECODE_MARGIN_TOKENS, point.start + point.chunk) < context_length and point.seqs < slots
    ]


def cached_lengths(points: Sequence[CalibrationPoint]) -> list[int]:
    """How many tokens of each sequence have to be in the cache, so that no point waits for a prefill. Longest first.

    The first is also what chunks come after.
    """
    seqs = max(1, *(point.seqs for point in points))
    lengths = [max((point.context for point in points if point.seqs > place), default=0) for place in range(seqs)]
    lengths[0] = max(lengths[0], *(point.start for point in points))
    return lengths


def kv_blocks_for(points: Sequence[CalibrationPoint]) -> int:
    """KV blocks that hold all of it, and what one round leaves behind in the prefix cache."""
    lengths = cached_lengths(points)
    beside = sum(point.chunk + BLOCK_SIZE for point in points) + 2 * DECODE_MARGIN_TOKENS * len(lengths)
    return (sum(lengths) + 2 * beside) // BLOCK_SIZE + 2 * len(lengths)
