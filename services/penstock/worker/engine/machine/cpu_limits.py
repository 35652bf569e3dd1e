"""The number of CPU cores that an engine may use."""

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

CGROUP_ROOT = Path("/sys/fs/cgroup")
CGROUP_FILE = Path("/proc/self/cgroup")


def available_cores() -> int:
    """Return the cores that this process may use: at most its container's quota, beyond which it is throttled."""
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), *cpu_quotas(CGROUP_FILE, CGROUP_ROOT))))


def cpu_quotas(cgroup_file: Path, cgroup_root: Path) -> list[float]:
    """Return the CPU quota, in cores, of each control group (version 2) of this process."""
    return [math.inf, *_read_quotas(cgroup_file, cgroup_root)]


def _read_quotas(cgroup_file: Path, cgroup_root: Path) -> Iterator[float]:
    lines = cgroup_file.read_text(encoding="utf-8").splitlines() if cgroup_file.exists() else []
    for path in (PurePosixPath(line[3:]) for line in lines if line.startswith("0::")):
        # Inside a container the path may be the host's, of which only the end, or no part, is mounted here.
        for group in (path, *path.parents):
            file = cgroup_root / group.relative_to("/") / "cpu.max"
            words = file.read_text(encoding="utf-8").split() if file.exists() else []
            if len(words) == 2 and words[0].isdigit():
                yield int(words[0]) / int(words[1])
