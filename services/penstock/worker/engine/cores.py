"""How many cores a CPU engine may count on."""

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def cores_here() -> int:
    """Cores that this process may run on, and no more than its container may use: beyond that it would be stopped."""
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), *quotas(MEMBERSHIP, CGROUPS))))


def quotas(membership: Path, cgroups: Path) -> list[float]:
    """Cores' worth of time that each control group (version 2) around this process grants."""
    return [math.inf, *_quotas(membership, cgroups)]


def _quotas(membership: Path, cgroups: Path) -> Iterator[float]:
    lines = membership.read_text(encoding="utf-8").splitlines() if membership.exists() else []
    for path in (PurePosixPath(line[3:]) for line in lines if line.startswith("0::")):
        # Inside a container the path may be the host's, of which only the end, or nothing, is mounted here.
        for group in (path, *path.parents):
            file = cgroups / group.relative_to("/") / "cpu.max"
            words = file.read_text(encoding="utf-8").split() if file.exists() else []
            if len(words) == 2 and words[0].isdigit():
                yield int(words[0]) / int(words[1])
