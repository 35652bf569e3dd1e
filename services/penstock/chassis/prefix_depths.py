"""Depths, in KV blocks, at which tickets and cache reports name prefixes. All tiers must use the same ones.

A chained hash names a block and all blocks before it, so not every block must be named. The first 16 depths are dense;
then there are eight per doubling. 64 hashes thus reach 1,024 blocks, and the depth found is at most an eighth short.
"""

DENSE_DEPTHS = 16
DEPTHS_PER_DOUBLING = 8
DOUBLINGS = 6

PREFIX_DEPTHS: tuple[int, ...] = (
    *range(1, DENSE_DEPTHS + 1),
    *(
        base + base * step // DEPTHS_PER_DOUBLING
        for base in (DENSE_DEPTHS << doubling for doubling in range(DOUBLINGS))
        for step in range(1, DEPTHS_PER_DOUBLING + 1)
    ),
)
MAX_DEPTH = PREFIX_DEPTHS[-1]
NAMED_DEPTHS = frozenset(PREFIX_DEPTHS)
