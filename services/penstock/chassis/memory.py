"""Memory of large blocks that returns to the system when the process frees it."""

import ctypes

MMAP_THRESHOLD_BYTES = 1 << 20  # blocks of this size and more are mapped one by one
_M_MMAP_THRESHOLD = -3  # of malloc.h


def map_large_blocks() -> bool:
    """Let glibc map each block of 1 MiB or more on its own. Return False where the C library has no such setting.

    By default glibc raises its threshold to the largest block that was freed, up to 32 MiB. A process that has freed a
    body of 16 MiB then places the next ones on heaps, which rarely shrink, and stays that much larger.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES))
