"""How much memory a KV pool may take where nobody says, and what a pool means for the model's context."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import psutil
import structlog

from penstock.worker.engine.model_card import ModelCard

CPU_POOL_SHARE = 0.25  # of what is free: other workers may start beside this one and see the same memory free
MAX_CPU_POOL_BYTES = 4 << 30  # bytes; on a CPU more sequences than fit here would each be too slow to read
GPU_POOL_SHARE = 0.85  # of what the weights leave: the rest is for a step's activations
MIN_CONTEXT_TOKENS = 64  # tokens; below it a model is of no use

CGROUP_ROOT = Path("/sys/fs/cgroup")
CGROUP_FILE = Path("/proc/self/cgroup")


class CgroupFiles(NamedTuple):
    """Where a version of control groups says how full a group is."""

    mount: str
    limit: str
    usage: str
    cache: str  # line of memory.stat


_CGROUP_VERSIONS = {  # by what /proc/self/cgroup names the hierarchy
    "": CgroupFiles("", "memory.max", "memory.current", "inactive_file"),
    "memory": CgroupFiles("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}

log = structlog.get_logger()


def cpu_pool_bytes() -> int:
    free = min(psutil.virtual_memory().available, *cgroup_free_bytes(CGROUP_FILE, CGROUP_ROOT))
    return min(int(free * CPU_POOL_SHARE), MAX_CPU_POOL_BYTES)


def gpu_pool_bytes(free: int) -> int:
    return int(free * GPU_POOL_SHARE)


def cgroup_free_bytes(cgroup_file: Path, cgroup_root: Path) -> list[int]:
    """Bytes that each control group around this process still allows, without the file cache, which gives way."""
    rooms = [1 << 62]
    for line in cgroup_file.read_text(encoding="utf-8").splitlines() if cgroup_file.exists() else ():
        _, controllers, path = line.split(":", 2)
        for version in _CGROUP_VERSIONS.keys() & set(controllers.split(",")):
            rooms += _free_bytes(cgroup_root, PurePosixPath(path), _CGROUP_VERSIONS[version])
    return rooms


def fit_context(card: ModelCard, blocks: int, block_size: int) -> ModelCard:
    """The card, its context cut to what the pool holds for one sequence. Raises ValueError when that is no use."""
    held = blocks * block_size
    if held >= card.context_length:
        return card
    if held < MIN_CONTEXT_TOKENS:
        raise ValueError(
            f"a KV pool of {held} tokens is too small to serve {card.name}; set kv_bytes or kv_blocks higher"
        )
    log.warning("context_cut_to_kv_pool", model=card.name, model_context=card.context_length, pool_tokens=held)
    return replace(card, context_length=held)


def _free_bytes(cgroup_root: Path, path: PurePosixPath, files: CgroupFiles) -> Iterator[int]:
    # Inside a container the path may be the host's, of which only the end, or nothing, is mounted here.
    for group in (path, *path.parents):
        folder = cgroup_root / files.mount / group.relative_to("/")
        most = _read_text(folder / files.limit)
        used = _read_text(folder / files.usage)
        if most.isdigit() and used.isdigit():
            yield max(0, int(most) - int(used) + _stat_value(folder / "memory.stat", files.cache))


def _read_text(file: Path) -> str:
    return file.read_text(encoding="utf-8").strip() if file.exists() else ""


def _stat_value(file: Path, name: str) -> int:
    lines = _read_text(file).splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
