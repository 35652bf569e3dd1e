"""Seeds of the choices of one request, as the public contract states them for edges and clients."""

# Odd, so that all choices of a seed differ; near 2**64 / 1.618, so that the choices of small seeds do not meet.
SEED_STEP = 0x9E3779B97F4A7C15


def choice_seed(seed: int, choice: int) -> int:
    """Return the seed of a choice, 0 for the first, whose seed is that of the request. 64 bits."""
    return (seed + choice * SEED_STEP) % 2**64
