"""Calibration points: the decode, prefill and mixed steps that are measured, within the model's context. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

BLOCK_SIZE = 16
TOKEN_BUDGET = 1024  # tokens per step; above the tokens of every point
DECODE_MARGIN_TOKENS = 16  # tokens that a sequence generates while it is measured

# Context lengths by the number of decodes, all multiples of a block. Long contexts are measured with few decodes only:
# the prefill of many long contexts takes minutes and adds no information.
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
    """Return all points that fit the model's context and the engine's slots."""
    candidates = [
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
        for point in candidates
        if max(point.context + DECODE_MARGIN_TOKENS, point.start + point.chunk) < context_length and point.seqs < slots
    ]


def cached_lengths(points: Sequence[CalibrationPoint]) -> list[int]:
    """Return the tokens of each sequence that must be cached, so that no point includes their prefill; longest first.

    The first sequence is also the prefix of the prefill chunks.
    """
    seqs = max(1, *(point.seqs for point in points))
    lengths = [max((point.context for point in points if point.seqs > place), default=0) for place in range(seqs)]
    lengths[0] = max(lengths[0], *(point.start for point in points))
    return lengths


def kv_blocks_for(points: Sequence[CalibrationPoint]) -> int:
    """Return the KV blocks that hold all contexts, and the blocks that one round leaves in the prefix cache."""
    lengths = cached_lengths(points)
    round_tokens = sum(point.chunk + BLOCK_SIZE for point in points) + 2 * DECODE_MARGIN_TOKENS * len(lengths)
    return (sum(lengths) + 2 * round_tokens) // BLOCK_SIZE + 2 * len(lengths)
