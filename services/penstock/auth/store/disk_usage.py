"""Disk usage: the used share of the volume that holds the store, and whether it is above the watermark."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.chassis.database.location import MEMORY

HYSTERESIS = 0.01  # share; use that varies around the watermark is not a change


def used_share(path: str, statvfs: Callable[[str], os.statvfs_result] = os.statvfs) -> float:
    """Return the share of the volume that unprivileged processes can no longer write; 0 for a store in memory."""
    if path == MEMORY:
        return 0.0
    volume = statvfs(str(Path(path).absolute().parent))
    return 1.0 - volume.f_bavail / volume.f_blocks if volume.f_blocks else 0.0


def free_bytes(path: str, statvfs: Callable[[str], os.statvfs_result] = os.statvfs) -> float:
    """Return the bytes of the volume that unprivileged processes can still write; infinite for a store in memory."""
    if path == MEMORY:
        return math.inf
    volume = statvfs(str(Path(path).absolute().parent))
    return volume.f_bavail * volume.f_frsize


@dataclass
class Watermark:
    """Compares the used share with a threshold. It is high from `share` on, and again normal slightly below it."""

    share: float
    used: float = field(default=0.0, init=False)
    is_high: bool = field(default=False, init=False)

    def update(self, used: float) -> bool:
        """Set the used share. Return whether `is_high` has changed."""
        self.used = used
        was_high = self.is_high
        self.is_high = used >= self.share - (HYSTERESIS if was_high else 0.0)
        return self.is_high != was_high
