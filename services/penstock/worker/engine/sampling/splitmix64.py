"""SplitMix64's mixer for counter-based randomness, without torch and numpy, so that simulated engines can use it."""

MASK64 = (1 << 64) - 1


def mix64(value: int) -> int:
    """Finalizer of SplitMix64 (Steele et al. 2014): a bijection; each input bit changes half the output bits."""
    value = (value + 0x9E3779B97F4A7C15) & MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK64
    return value ^ (value >> 31)
